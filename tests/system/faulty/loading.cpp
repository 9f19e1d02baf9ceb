// Goes wrong while it is loaded: LOADING says how.
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/observer.h"
#include "tests/system/faulty/misbehave.h"

namespace ananke {

#if defined(NEEDS_MISSING)
int function_that_nobody_has(int);
const int before_main = function_that_nobody_has(1);
#else
const bool before_main = [] {
  misbehave(LOADING);
  return true;
}();
#endif

class FaultyLoading final : public Observer {
 public:
  explicit FaultyLoading(const RoleContext&) {}
  void on_step(const StepRecord&) override {}
  void on_evaluation(const EvaluationRecord&) override {}
  void on_event(const RunEvent&) override {}
};

ANANKE_PLUGIN(Observer, FaultyLoading);

}  // namespace ananke
