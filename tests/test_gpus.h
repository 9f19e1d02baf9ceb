// ANANKE_TEST_GPUS=N: jobs of tests that need no backend in particular run on GPUs in the place of the host. Ranks that
// are threads share one (tests/sharing_backend): with a GPU each, CUDA's locks of the process would let one rank's
// allocation wait for another's collective.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace ananke {

inline bool on_gpus() { return std::getenv("ANANKE_TEST_GPUS") != nullptr; }

// What one MoE layer without plugin ep reads a step: there the grouped MLP sees its offsets, forward and backward.
inline std::uint64_t reads_of_experts() { return on_gpus() ? 2 : 0; }

inline int test_gpus() { return on_gpus() ? std::atoi(std::getenv("ANANKE_TEST_GPUS")) : 0; }

inline const char* test_backend(int ranks) {
  if (!on_gpus()) return "backend_host";
  return ranks == 1 ? "backend_cuda" : "sharing_backend";
}

}  // namespace ananke
