// ANANKE_TEST_GPUS=N: jobs of tests that need no backend in particular run on N GPUs in the place of the host; ranks of
// a job with more of them share one (tests/sharing_backend).
#pragma once

#include <cstdint>
#include <cstdlib>

namespace ananke {

inline bool on_gpus() { return std::getenv("ANANKE_TEST_GPUS") != nullptr; }

// What one MoE layer without plugin ep reads a step: there the grouped MLP sees its offsets, forward and backward.
inline std::uint64_t reads_of_experts() { return on_gpus() ? 2 : 0; }

inline const char* test_backend(int ranks) {
  const char* gpus = std::getenv("ANANKE_TEST_GPUS");
  if (!gpus) return "backend_host";
  return ranks <= std::atoi(gpus) ? "backend_cuda" : "sharing_backend";
}

}  // namespace ananke
