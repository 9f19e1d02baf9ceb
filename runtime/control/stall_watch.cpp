#include "runtime/control/stall_watch.h"

#include <algorithm>
#include <vector>

namespace ananke {
namespace {

constexpr std::size_t kept = 64;  // of each phase: a job that gets slower, or faster, has another measure soon

}  // namespace

// Of short steps not every one is heard of: those between two words share the time.
void StallWatch::heard(const std::string& phase, std::uint64_t step, Clock::time_point now) {
  if (phase == phase_ && step == step_) return;
  if (!phase_.empty()) {
    const bool goes_on = phase == phase_;
    const std::uint64_t behind = goes_on ? step_ : step_ - (phase_ == "step" && step_ > 0 ? 1 : 0);
    const std::uint64_t times = phase_ == "step" && step > behind ? step - behind : 1;
    History& history = histories_[phase_];
    history.seen += times;
    history.last.push_back((now - since_) / times);
    if (history.last.size() > kept) history.last.pop_front();
  }
  phase_ = phase;
  step_ = step;
  since_ = now;
}

std::optional<StallWatch::Clock::duration> StallWatch::usual(const std::string& phase) const {
  const auto found = histories_.find(phase);
  const int needed = phase == "step" ? limits_.steps : std::max(2, limits_.steps / 3);
  if (found == histories_.end() || found->second.seen < static_cast<std::uint64_t>(needed)) return std::nullopt;
  std::vector<Clock::duration> times(found->second.last.begin(), found->second.last.end());
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

std::optional<StallWatch::Clock::duration> StallWatch::limit(const std::string& phase) const {
  if (phase == "checkpoint") return std::nullopt;
  const auto median = usual(phase);
  if (limits_.factor <= 0 || !median) return std::nullopt;
  const auto many = std::chrono::duration<double>(*median) * limits_.factor;
  return std::max<Clock::duration>(std::chrono::duration_cast<Clock::duration>(many), limits_.least);
}

}  // namespace ananke
