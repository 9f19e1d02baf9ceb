// Counter-based random numbers: every value is a pure function of (key, index), so that weights, shuffles and test
// inputs do not depend on how work is divided over ranks, threads or calls.
#pragma once

#include <cstdint>
#include <string_view>

namespace ananke {

// A stream of numbers named by (seed, name). Cheap to copy; has no state that advances.
class RandomKey {
 public:
  RandomKey(std::uint64_t seed, std::string_view name) noexcept;
  std::uint64_t bits(std::uint64_t index) const noexcept;     // 64 uniform bits (Philox4x32-10, Salmon et al. 2011)
  double uniform(std::uint64_t index) const noexcept;         // in (0, 1), both ends excluded
  std::uint64_t below(std::uint64_t index, std::uint64_t bound) const noexcept;  // in [0, bound), bound > 0
  // Standard normal truncated to [-3, 3], by inverting the cumulative distribution: one draw, no rejection loop,
  // hence the same on every shard and device.
  double truncated_normal(std::uint64_t index) const noexcept;

 private:
  std::uint64_t key_;
};

// Element i of a random permutation of [0, count), a pure function of (key, count, i): a Feistel network walked until
// it lands inside the range. No table, so it serves indexes larger than memory.
std::uint64_t permuted(const RandomKey& key, std::uint64_t count, std::uint64_t i) noexcept;

}  // namespace ananke
