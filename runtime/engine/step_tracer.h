// Traces the steps that a job names (telemetry.trace_steps) into RUN_DIR/trace/rank_N.json, each rank its own. A step's
// trace reaches from its beginning to that of the next: the evaluation and the checkpoint behind it belong to it.
//
// Other steps cost a look at a list. What goes wrong with a trace is a warning, and the run goes on without.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "runtime/telemetry/trace_file.h"

namespace ananke {

class Backend;
class Job;
struct RoleContext;

class StepTracer {
 public:
  StepTracer(const RoleContext& context, Backend& backend);
  // The step under way ends: as far as it came, where an error unwinds the run.
  ~StepTracer();
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  // A run begins, on all ranks; rank 0 before any rank begins a step. `resumed_after`: behind this step. Otherwise
  // traces of an earlier run in this folder are kept aside as RUN_DIR/trace.old.
  void start(std::optional<std::uint64_t> resumed_after);
  // What to tell of steps that are not traced, since this run goes on behind them; empty where there are none.
  std::string passed() const;
  // On the thread that issues work, outside of any span. Ends the step before.
  void begin(std::uint64_t step);
  // Waits for the streams. Throws what their work threw.
  void end();

 private:
  void finish() noexcept;
  template <class Work>
  void attempt(const Work& work) noexcept;

  TraceFile::Setup setup_;
  std::set<std::uint64_t> wanted_;
  Backend& backend_;
  std::uint64_t step_ = 0;
  std::shared_ptr<Trace> trace_;  // of the step under way; null: it is not traced
  std::unique_ptr<TraceFile> file_;
};

}  // namespace ananke
