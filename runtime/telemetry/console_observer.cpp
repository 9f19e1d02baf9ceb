#include "runtime/telemetry/console_observer.h"

#include <algorithm>

#include "ananke/job.pb.h"
#include "ananke/telemetry.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace ananke {
namespace {

std::string describe(RunEvent::Kind kind) {
  switch (kind) {
    case RunEvent::STARTED: return "started";
    case RunEvent::RESUMED: return "resumed";
    case RunEvent::CHECKPOINT: return "checkpoint";
    case RunEvent::STOP_REQUESTED: return "stop requested";
    case RunEvent::FINISHED: return "finished";
    case RunEvent::FAILED: return "failed";
  }
  return "event";
}

}  // namespace

ConsoleObserver::ConsoleObserver(const Job& job, ConsoleSink print)
    : total_steps_(job.training().steps()), print_(std::move(print)) {
  for (const HeldOut& set : job.evaluation().held_out()) name_width_ = std::max(name_width_, set.name().size());
}

// The first step's time is left out as soon as there is another: it warms up caches and allocators.
double ConsoleObserver::seconds_left(const StepRecord& record) {
  ++steps_seen_;
  const double weight = steps_seen_ <= 2 ? 1.0 : std::max(0.05, 1.0 / static_cast<double>(steps_seen_ - 1));
  seconds_per_step_ += weight * (record.seconds() - seconds_per_step_);
  return seconds_per_step_ * static_cast<double>(total_steps_ - std::min(total_steps_, record.step()));
}

void ConsoleObserver::on_step(const StepRecord& record) {
  const std::string total = std::to_string(total_steps_);
  print_(fmt::format(
      "step {:>{}}/{} | loss {:.4f} | {:>5} tokens/s | gradient norm {:.3g} | lr {:.3g} | memory {} | left {}{}",
      record.step(), total.size(), total, record.loss(), format_count(record.tokens_per_second()),
      record.gradient_norm(), record.learning_rate(), format_bytes(record.memory_bytes()),
      format_duration(seconds_left(record)), record.skipped() ? " | SKIPPED: not finite" : ""));
}

void ConsoleObserver::on_evaluation(const EvaluationRecord& record) {
  const std::string per_byte =
      record.has_bits_per_byte() ? fmt::format(" | {:.4f} bits/byte", record.bits_per_byte()) : "";
  print_(fmt::format("evaluation after step {} | {:<{}} | loss {:.4f} | {:.4f} bits/token{} | {} tokens in {}",
                     record.step(), record.held_out(), name_width_, record.loss(), record.bits_per_token(), per_byte,
                     format_count(static_cast<double>(record.valid_tokens())), format_duration(record.seconds())));
}

void ConsoleObserver::on_event(const RunEvent& event) {
  print_(fmt::format("{} at step {}{}{}", describe(event.kind()), event.step(), event.text().empty() ? "" : ": ",
                     event.text()));
}

}  // namespace ananke
