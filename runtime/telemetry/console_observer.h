// Built-in observer: one console line per step, evaluation and event.
#pragma once

#include <functional>
#include <string>

#include "runtime/roles/observer.h"

namespace ananke {

class WorkRecord;

using ConsoleSink = std::function<void(const std::string&)>;  // gets a line without its end

class ConsoleObserver : public Observer {
 public:
  // Takes the number of steps from the job, for "step 12/200" and the time left, and the held-out sets' names.
  ConsoleObserver(const Job& job, ConsoleSink print);
  void on_step(const StepRecord& record) override;
  void on_evaluation(const EvaluationRecord& record) override;
  void on_event(const RunEvent& event) override;

 private:
  double seconds_left(const StepRecord& record);
  std::string slow_text(const WorkRecord& work);
  std::uint64_t total_steps_;
  bool experts_dealt_;          // work is counted by rows, and experts of some ranks may have more of them
  std::size_t name_width_ = 0;  // of the longest set's name
  ConsoleSink print_;
  std::uint64_t steps_seen_ = 0;
  std::uint32_t slow_rank_ = 0;
  int slow_steps_ = 0;           // that this rank was slow, one after another
  double seconds_per_step_ = 0;  // a mean that forgets: the first steps are slower, a cluster changes its pace
};

}  // namespace ananke
