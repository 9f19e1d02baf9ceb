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
    case RunEvent::SLOW_RANK: return "slow rank";
  }
  return "event";
}

// What is in use and, where more is reserved, that too; reads beyond the one that every step makes; requests that had
// to be made twice.
std::string memory_text(const StepRecord& record) {
  std::string text = format_bytes(record.memory_bytes());
  if (record.memory_reserved_bytes() > record.memory_bytes()) {
    text += fmt::format(" of {} reserved", format_bytes(record.memory_reserved_bytes()));
  }
  if (record.memory_retries() > 0) text += fmt::format(", {} RETRIES", record.memory_retries());
  if (record.device_reads() > 1) text += fmt::format(" | {} host reads", record.device_reads());
  return text;
}

// The layer whose busiest expert does most beyond its share; what the routers' losses add; the mark of a sizing run.
std::string routing_text(const StepRecord& record) {
  std::string text;
  if (record.has_auxiliary_loss()) text += fmt::format(" | auxiliary {:.3g}", record.auxiliary_loss());
  if (record.has_router_z_loss()) text += fmt::format(" | z {:.3g}", record.router_z_loss());
  const RoutingRecord& routing = record.routing();
  const auto worst = std::max_element(routing.imbalance().begin(), routing.imbalance().end());
  if (worst != routing.imbalance().end() && routing.layer_size() == routing.imbalance_size()) {
    text += fmt::format(" | busiest expert {:.2f}x in layer {}", *worst,
                        routing.layer(static_cast<int>(worst - routing.imbalance().begin())));
  }
  double dropped = 0;
  for (const double number : routing.dropped()) dropped += number;
  if (dropped != 0) text += fmt::format(" | DROPPED {:.0f} choices", dropped);
  if (record.forced_balance()) text += " | FORCED BALANCE: routers decide nothing";
  return text;
}

// Whose rows cost so much more than others' that it shows.
std::string work_text(const WorkRecord& work) {
  constexpr double much = 1.25;
  return work.largest() >= much ? fmt::format(" | rank {} has {:.2f}x the work", work.largest_rank(), work.largest())
                                : "";
}

}  // namespace

// One that is slow once may have been disturbed; who is it time and again shall be named.
std::string ConsoleObserver::slow_text(const WorkRecord& work) {
  constexpr double much = 1.25;
  constexpr int again = 5;
  // A slow node shows in what it takes for its work, also where another rank has more to do.
  const bool straggles = work.straggler() >= much, slow = straggles || work.slowest() >= much;
  const std::uint32_t rank = straggles ? work.straggler_rank() : work.slowest_rank();
  slow_steps_ = slow && slow_rank_ == rank ? slow_steps_ + 1 : slow ? 1 : 0;
  slow_rank_ = rank;
  if (slow_steps_ < again) return "";
  if (straggles) {
    return fmt::format(" | rank {} takes {:.2f}x as long for the same work: its node is slow{}", rank, work.straggler(),
                       experts_dealt_ ? ", or its experts have more to do" : "");
  }
  return fmt::format(" | rank {} computes {:.2f}x as long for {:.2f}x the work: its rows", rank, work.slowest(),
                     work.slowest_work());
}

ConsoleObserver::ConsoleObserver(const Job& job, ConsoleSink print)
    : total_steps_(job.training().steps()), experts_dealt_(job.mesh().expert() > 1), print_(std::move(print)) {
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
      "step {:>{}}/{} | loss {:.4f} | {:>5} tokens/s | gradient norm {:.3g} | lr {:.3g} | memory {} | left {}{}{}{}{}",
      record.step(), total.size(), total, record.loss(), format_count(record.tokens_per_second()),
      record.gradient_norm(), record.learning_rate(), memory_text(record), format_duration(seconds_left(record)),
      routing_text(record), work_text(record.work()), slow_text(record.work()),
      record.skipped() ? " | SKIPPED: not finite" : ""));
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
