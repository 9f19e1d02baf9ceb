#include "runtime/roles/observer.h"

#include "faulty_observer.pb.h"
#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/misbehave.h"

namespace ananke {
namespace {

class FaultyObserver final : public Observer {
 public:
  FaultyObserver(const RoleContext& context, const plugin::FaultyObserver& config) : trouble_(context, config) {}
  void on_step(const StepRecord&) override { trouble_.enter("on_step"); }
  void on_evaluation(const EvaluationRecord&) override { trouble_.enter("on_evaluation"); }
  void on_event(const RunEvent&) override { trouble_.enter("on_event"); }

 private:
  Trouble trouble_;
};

}  // namespace

ANANKE_PLUGIN(Observer, FaultyObserver, plugin::FaultyObserver);

}  // namespace ananke
