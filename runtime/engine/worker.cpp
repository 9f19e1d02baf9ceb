#include "runtime/engine/worker.h"

#include <chrono>
#include <filesystem>
#include <fstream>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/log.h"
#include "runtime/base/replace_file.h"
#include "runtime/binding/rank_binding.h"
#include "runtime/checkpoint/run_lock.h"
#include "runtime/config/job.h"
#include "runtime/config/resume.h"
#include "runtime/config/validate.h"
#include "runtime/engine/admit.h"
#include "runtime/engine/memory_report.h"
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
  explicit ControlledRun(const WorkerContext& worker)
      : client_(worker.control), items_(worker.items), run_dir_(worker.job.job.run_dir()), owner_(worker.owner) {}
  // A job that has lost its run folder stops as by request: its last checkpoint is then refused on all ranks alike.
  bool stop_requested() const override { return client_.stop_requested() || lost(); }
  std::string owner_mark() const override { return ananke::owner_mark(owner_); }
  void confirm_owner() const override {
    if (!owner_.empty()) check_run_owner(run_dir_, owner_);
  }
  void phase(std::string_view what, std::uint64_t step) override { client_.set_phase(what, step); }
  void item(const ItemPlace& place) override {
    if (items_) items_->begin(place);
  }
  void console(const std::string& line) override { client_.console(line); }

 private:
  // Looks now and then: the launcher says it too, but may itself stand still.
  bool lost() const {
    constexpr std::chrono::seconds pause(10);
    const auto now = std::chrono::steady_clock::now();
    if (client_.rank() != 0 || owner_.empty() || now - looked_ < pause) return false;
    try {
      confirm_owner();
    } catch (const std::exception& error) {
      log_error("{}", error.what());
      return true;
    }
    looked_ = std::chrono::steady_clock::now();
    return false;
  }

  ControlClient& client_;
  const std::shared_ptr<ItemTrail> items_;
  const std::string run_dir_, owner_;
  mutable std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

void print_tables(Trainer& trainer, const Job& job, RunControl& control) {
  for (const std::string& remark : remarks_on(job)) control.console("note: " + remark);
  control.console(parameter_table_text(trainer.engine().table(), job.training().sequence_length()));
  control.console(memory_plan_text(whole_plan(trainer)));
}

// The plan of the rank that took most beside what it took, on the console and in the run folder. Collective.
void report_memory(Trainer& trainer, const Job& job, Rendezvous& rendezvous, RunControl& control) {
  const std::optional<MemoryReport> report = largest_report(rendezvous, measured_report(trainer));
  if (!report) return;
  control.console(memory_report_text(*report));
  try {
    control.confirm_owner();
    ReplacedFile file(std::filesystem::path(job.run_dir()) / "memory.json");
    std::ofstream stream(file.partial());
    stream << to_json_line(*report) << '\n' << std::flush;
    if (!stream) fail(ErrorKind::resource, "cannot write {}", file.partial().string());
    file.commit();
  } catch (const Error& error) {
    log_warning("memory.json: {}", error.what());
  }
}

BoundDevice bound_device(Backend& backend) {
  if (backend.computes_on_host()) return {};
  const std::optional<DeviceRoom> room = backend.room();
  return {room ? room->name : "", backend.device().numa_node()};
}

// What changed against the job that wrote a checkpoint, as text; throws where it cannot be.
std::vector<std::string> changes_since(const LoadedState& checkpoint, const LoadedJob& now) {
  std::vector<std::string> text;
  for (const FieldChange& change : changes_of_resume(*checkpoint.job, checkpoint.progress.step, now)) {
    text.push_back(to_string(change));
  }
  return text;
}

}  // namespace

int run_worker(const WorkerContext& worker) {
  Job job = worker.job.job;  // admission may change its offload fraction
  ControlledRun control(worker);
  control.phase("loading plugins", 0);
  PluginRegistry plugins(worker.trail);
  for (const PluginFile& file : job.resolved().plugins()) plugins.load(file.name(), file.path(), file.hash());

  const Identity& me = worker.identity;
  const RoleContext context{job, worker.site, mesh_of(job.mesh()), me.rank, me.local_size, me.host, me.local_rank};
  ObserverList observers;
  if (context.rank == 0) {
    const auto print = [&](const std::string& line) { control.console(line); };
    observers.add("console", std::make_unique<ConsoleObserver>(job, print));
    observers.add("steps.jsonl", std::make_unique<JsonLinesObserver>(job.run_dir(), print));
    for (auto& [name, observer] : make_observers(job, plugins, context)) observers.add(name, std::move(observer));
  }
  const std::unique_ptr<Trainer> admitted =
      Admitter(job, context, worker.site, worker.control, control, [&] {
        return std::make_unique<Trainer>(make_roles(job, plugins, context), context, worker.control, control,
                                         observers);
      }).admit();
  Trainer& trainer = *admitted;
  control.phase("binding", 0);
  settle_binding(worker.site.binding(), worker.site.memory().root(), me.host, bound_device(trainer.engine().backend()),
                 worker.control);
  if (context.rank == 0) print_tables(trainer, job, control);
  trainer.start(worker.resume, [&](const LoadedState& checkpoint) { return changes_since(checkpoint, worker.job); });
  log_info("{}", trainer.engine().device().description());
  const TrainingEnd end = trainer.train();
  report_memory(trainer, job, worker.control, control);
  control.phase("end", trainer.progress().step);
  return end == TrainingEnd::finished ? 0 : static_cast<int>(ErrorKind::interrupted);
}

}  // namespace ananke
