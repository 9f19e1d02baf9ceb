// Role "observer": told what a run does. Called on rank 0 only, from the step loop: must not block. Built-in: console
// lines, steps.jsonl.
#pragma once

#include "runtime/roles/context.h"

namespace ananke {

class StepRecord;
class EvaluationRecord;
class RunEvent;

class Observer {
 public:
  static constexpr const char* role = "observer";
  virtual ~Observer() = default;
  virtual void on_step(const StepRecord& record) = 0;
  virtual void on_evaluation(const EvaluationRecord& record) = 0;
  virtual void on_event(const RunEvent& event) = 0;
};

}  // namespace ananke
