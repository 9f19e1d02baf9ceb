#include "plugins/activation_offload/copy_clock.h"

#include <utility>

namespace ananke::activation_offload {

void CopyClock::begin(Kind kind, Stream& stream) {
  if (spare_.empty()) {
    running_.push_back({kind, device_->make_timer(), device_->make_timer()});
  } else {
    running_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    running_.back().kind = kind;
  }
  stream.record(*running_.back().begin);
}

void CopyClock::end(Stream& stream) { stream.record(*running_.back().end); }

void CopyClock::collect() {
  std::vector<Timers> not_yet;
  for (Timers& timers : running_) {
    if (!timers.end->reached()) {
      not_yet.push_back(std::move(timers));
      continue;
    }
    if (const auto seconds = timers.end->seconds_since(*timers.begin)) {
      sums_[timers.kind] += *seconds;
      measured_ = true;
    }
    spare_.push_back(std::move(timers));
  }
  running_ = std::move(not_yet);
}

}  // namespace ananke::activation_offload
