// Observer plugin @NAME@: one CSV line per step. runtime/roles/observer.h is the contract.
#include <filesystem>
#include <fstream>

#include "@NAME@.pb.h"
#include "ananke/job.pb.h"
#include "ananke/telemetry.pb.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/observer.h"

namespace ananke {
namespace {

class @CLASS@Observer final : public Observer {
 public:
  @CLASS@Observer(const RoleContext& context, const plugin::@CLASS@& config)
      : path_(std::filesystem::path(context.job.run_dir()) / config.file()), file_(path_, std::ios::app) {
    if (!file_) fail(ErrorKind::resource, "cannot write {}; check that the run folder can be written", path_.string());
    if (file_.tellp() == 0) file_ << "step,loss,learning_rate,tokens_per_second\n";
  }

  void on_step(const StepRecord& record) override {
    file_ << fmt::format("{},{},{},{:.1f}\n", record.step(), record.loss(), record.learning_rate(),
                         record.tokens_per_second());
    file_.flush();  // to be read while the run goes on
    if (!file_) fail(ErrorKind::resource, "cannot write {}; is the disk full?", path_.string());
  }
  void on_evaluation(const EvaluationRecord&) override {}
  void on_event(const RunEvent&) override {}

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace

ANANKE_PLUGIN(Observer, @CLASS@Observer, plugin::@CLASS@);

}  // namespace ananke
