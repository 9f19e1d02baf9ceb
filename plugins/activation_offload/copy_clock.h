// How long copies take, and how long the compute stream waits for them. Measured by timers on the streams, added up
// when they have been reached: nothing here waits.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/device/device.h"

namespace ananke::activation_offload {

class CopyClock {
 public:
  enum Kind { copies, stalls };
  void start(Device& device) { device_ = &device; }
  // Around work on one stream; one at a time.
  void begin(Kind kind, Stream& stream);
  void end(Stream& stream);
  // Adds up what has been reached.
  void collect();
  // Seconds since start; nothing where the backend measures none.
  std::optional<double> seconds(Kind kind) const { return measured_ ? std::optional(sums_[kind]) : std::nullopt; }

 private:
  struct Timers {
    Kind kind;
    std::unique_ptr<Event> begin, end;
  };
  Device* device_ = nullptr;
  std::vector<Timers> running_, spare_;  // in the order of their making
  double sums_[2] = {0, 0};
  bool measured_ = false;
};

}  // namespace ananke::activation_offload
