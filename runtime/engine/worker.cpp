#include "runtime/engine/worker.h"

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/log.h"
#include "runtime/config/job.h"
#include "runtime/config/resume.h"
#include "runtime/config/validate.h"
#include "runtime/engine/trainer.h"
#include "runtime/plugin/registry.h"
#include "runtime/telemetry/console_observer.h"
#include "runtime/telemetry/json_lines_observer.h"
#include "runtime/telemetry/observer_list.h"
#include "runtime/telemetry/tables.h"

namespace ananke {
namespace {

class ControlledRun : public RunControl {
 public:
  explicit ControlledRun(ControlClient& client) : client_(client) {}
  bool stop_requested() const override { return client_.stop_requested(); }
  void phase(std::string_view what, std::uint64_t step) override { client_.set_phase(what, step); }
  void console(const std::string& line) override { client_.console(line); }

 private:
  ControlClient& client_;
};

void print_tables(Trainer& trainer, const Job& job, RunControl& control) {
  for (const std::string& remark : remarks_on(job)) control.console("note: " + remark);
  control.console(parameter_table_text(trainer.engine().table(), job.training().sequence_length()));
  control.console(memory_plan_text(trainer.plan()));
}

// What changed against the job that wrote a checkpoint, as text; throws where it cannot be.
std::vector<std::string> changes_since(const LoadedState& checkpoint, const LoadedJob& now) {
  std::vector<std::string> text;
  for (const FieldChange& change : changes_of_resume(*checkpoint.job, checkpoint.progress.step, now)) {
    text.push_back(fmt::format("{}: {} before, {} now", change.path, change.before, change.after));
  }
  return text;
}

}  // namespace

int run_worker(const WorkerContext& worker) {
  const Job& job = worker.job.job;
  ControlledRun control(worker.control);
  control.phase("loading plugins", 0);
  PluginRegistry plugins(worker.trail);
  for (const PluginFile& file : job.resolved().plugins()) plugins.load(file.name(), file.path(), file.hash());

  const RoleContext context{job, worker.site, mesh_of(job.mesh()), worker.identity.rank, worker.identity.local_size};
  ObserverList observers;
  if (context.rank == 0) {
    const auto print = [&](const std::string& line) { control.console(line); };
    observers.add("console", std::make_unique<ConsoleObserver>(job, print));
    observers.add("steps.jsonl", std::make_unique<JsonLinesObserver>(job.run_dir()));
    for (auto& [name, observer] : make_observers(job, plugins, context)) observers.add(name, std::move(observer));
  }
  Trainer trainer(make_roles(job, plugins, context), context, worker.control, control, observers);
  if (context.rank == 0) print_tables(trainer, job, control);
  trainer.start(worker.resume, [&](const LoadedState& checkpoint) { return changes_since(checkpoint, worker.job); });
  log_info("{}", trainer.engine().device().description());
  const TrainingEnd end = trainer.train();
  control.phase("end", trainer.progress().step);
  return end == TrainingEnd::finished ? 0 : static_cast<int>(ErrorKind::interrupted);
}

}  // namespace ananke
