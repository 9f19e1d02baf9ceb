// When a standstill is one: how long steps, evaluations and checkpoints of this job take, and so how long a rank on
// which nothing moves may be left alone. No threads and no clock of its own; the owner brings the time.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace ananke {

// proto/ananke/faults.proto, message Stalls.
struct StallLimits {
  double factor = 10;  // 0: there is no such limit
  std::chrono::milliseconds least{120'000};
  int steps = 6;
  std::chrono::milliseconds stacks{10'000};
};

// Of one rank: since when it is where it is.
struct Progress {
  using Clock = std::chrono::steady_clock;
  Clock::time_point progressed{};  // to another phase or step
  Clock::time_point moved{};       // to another item too
  std::uint64_t items = 0;         // begun

  void note(bool another_step, std::uint64_t items_begun, Clock::time_point now) {
    if (another_step) progressed = now;
    if (another_step || items_begun != items) moved = now;
    items = items_begun;
  }
  void forgive(Clock::duration absence) {
    progressed += absence;
    moved += absence;
  }
};

class StallWatch {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StallWatch(StallLimits limits) : limits_(limits) {}

  // One rank's word on where it is, always the same rank's: all go through a step together. `step` is the one under way
  // in phase "step", the last one done in any other.
  void heard(const std::string& phase, std::uint64_t step, Clock::time_point now);
  // The owner has not listened for so long.
  void forgive(Clock::duration absence) { since_ += absence; }
  // Median time of a phase; nothing while too few have ended.
  std::optional<Clock::duration> usual(const std::string& phase) const;
  // How long nothing may move in it; nothing where that is not known, and of checkpoints: how long a file system takes
  // is no matter of the job's own measure.
  std::optional<Clock::duration> limit(const std::string& phase) const;

 private:
  struct History {
    std::uint64_t seen = 0;
    std::deque<Clock::duration> last;
  };

  StallLimits limits_;
  std::string phase_;  // under way; empty: none yet
  std::uint64_t step_ = 0;
  Clock::time_point since_{};
  std::map<std::string, History> histories_;
};

}  // namespace ananke
