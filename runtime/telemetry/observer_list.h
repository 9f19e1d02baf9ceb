// All observers of a run as one. Telling them never fails the run: one that throws is named in a warning and not told
// any more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/roles/observer.h"

namespace ananke {

class ObserverList : public Observer {
 public:
  // `name` is what a warning calls it: "console", a plugin's name.
  void add(std::string name, std::unique_ptr<Observer> observer);
  void on_step(const StepRecord& record) override;
  void on_evaluation(const EvaluationRecord& record) override;
  void on_event(const RunEvent& event) override;

 private:
  template <class Call>
  void tell(Call call);
  struct Entry {
    std::string name;
    std::unique_ptr<Observer> observer;
  };
  std::vector<Entry> entries_;
};

}  // namespace ananke
