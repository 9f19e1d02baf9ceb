#include "runtime/engine/step_tracer.h"

#include <fmt/ranges.h>

#include <iterator>

#include "ananke/job.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/roles/backend.h"
#include "runtime/roles/context.h"

namespace ananke {

StepTracer::StepTracer(const RoleContext& context, Backend& backend)
    : setup_{context.job.run_dir(), context.job.name(), context.rank, context.mesh.ranks()},
      wanted_(context.job.telemetry().trace_steps().begin(), context.job.telemetry().trace_steps().end()),
      backend_(backend) {}

StepTracer::~StepTracer() { finish(); }

// No trace is worth a run.
template <class Work>
void StepTracer::attempt(const Work& work) noexcept {
  try {
    work();
  } catch (const std::exception& error) {
    log_warning("steps are not traced any more: {}", error.what());
    wanted_.clear();
  }
}

std::string StepTracer::passed() const {
  const auto behind = wanted_.upper_bound(setup_.resumed_after.value_or(0));
  if (behind == wanted_.begin()) return "";
  return fmt::format(
      "note: telemetry.trace_steps: {} {} before step {}, where this run goes on, and not traced again; what an "
      "earlier "
      "run has traced stays in {}",
      fmt::join(wanted_.begin(), behind, ", "), std::next(wanted_.begin()) == behind ? "is" : "are",
      *setup_.resumed_after + 1, trace_folder(setup_.run_dir).string());
}

void StepTracer::start(std::optional<std::uint64_t> resumed_after) {
  setup_.resumed_after = resumed_after;
  if (resumed_after || setup_.rank != 0) return;
  attempt([&] {
    const std::filesystem::path folder = trace_folder(setup_.run_dir), aside = folder.string() + ".old";
    if (!std::filesystem::exists(folder)) return;
    std::filesystem::remove_all(aside);
    std::filesystem::rename(folder, aside);
  });
}

void StepTracer::begin(std::uint64_t step) {
  end();
  if (!wanted_.contains(step)) return;
  attempt([&] {
    if (!file_) file_ = std::make_unique<TraceFile>(setup_);
    auto trace = std::make_shared<Trace>();
    backend_.trace(trace.get());
    trace_ = std::move(trace);
    step_ = step;
    Trace::make_current(trace_.get());
  });
}

void StepTracer::end() {
  if (!trace_) return;
  for (int resource = 0; resource < resource_count; ++resource) {
    backend_.device().stream(static_cast<Resource>(resource)).synchronize();
  }
  finish();
}

void StepTracer::finish() noexcept {
  if (!trace_) return;
  Trace::make_current(nullptr);
  attempt([&] {
    backend_.trace(nullptr);
    file_->write(step_, *trace_);
    log_info("step {} is traced: {}", step_, trace_file(setup_.run_dir, setup_.rank).string());
  });
  trace_ = nullptr;
}

}  // namespace ananke
