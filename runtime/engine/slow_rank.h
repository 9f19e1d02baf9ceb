// Finds the rank that takes longest for its work, step after step: once may be a disturbance, time and again is a node.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace ananke {

class StepRecord;

class SlowRankWatch {
 public:
  static constexpr double much = 1.25;           // times the median rank's compute time for the same work
  static constexpr int again = 10;               // steps, one after another
  static constexpr std::uint64_t repeat = 1000;  // steps until the same rank is told again

  // Sees the record of every step. The rank that is now to be told, if any.
  std::optional<std::uint32_t> see(const StepRecord& record);

 private:
  std::uint32_t rank_ = 0;
  int steps_ = 0;                                // that this rank was slow, one after another
  std::map<std::uint32_t, std::uint64_t> told_;  // rank: step
};

}  // namespace ananke
