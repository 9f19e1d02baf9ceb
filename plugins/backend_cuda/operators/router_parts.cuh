// What the router's kernels share: what they are given, and the parts of f32 numbers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "runtime/operators/router.h"

namespace ananke::cuda {

inline constexpr float router_epsilon = 1e-20f;

// Where x is bf16, f32 numbers are three bf16 numbers, high + middle + low, exact but for what lies beyond bf16's
// exponents: products of bf16 are exact in f32, and tensor cores make them. Rows of each part are padded to whole
// vectors.
inline constexpr std::int64_t router_parts = 3;

struct Split {
  bf16 high, middle, low;
  __device__ explicit Split(float x) {
    high = from_float<bf16>(x);
    const float rest = x - to_float(high);
    middle = from_float<bf16>(rest);
    low = from_float<bf16>(rest - to_float(middle));
  }
  // At `at` and `stride` elements apart: low, high, middle, and high again.
  __device__ void store(bf16* at, std::int64_t stride) const {
    at[0] = low;
    at[stride] = high;
    at[2 * stride] = middle;
    at[3 * stride] = high;
  }
};

struct Decision {
  std::int64_t tokens;
  int experts, k, tokens_per_warp;
  RouterRule rule;
  bool replay;
  const float* bias;
  const float* logits;  // [T, parts, stride], whose parts are added into rows; null: rows holds the logits
  int stride;
  float *rows, *log_sums;
  std::int32_t* indices;
  float* weights;
  std::int32_t* counts;  // [blocks, E]
  double* sums;          // [blocks, E + 2]; null: no statistics are wanted

  // The first token of this warp, and the one behind its last. By all lanes.
  __device__ std::int64_t first() const {
    const unsigned warp = __shfl_sync(all_lanes, threadIdx.x / 32, 0);
    return (static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + warp) * tokens_per_warp;
  }
  __device__ std::int64_t last() const { return min(first() + tokens_per_warp, tokens); }
  // What the warps of the block counted and summed, each warp's sums `width` apart, in the order of warps. By all
  // threads, after a barrier.
  __device__ void leave(const int* block_counts, const double* warp_sums, std::size_t width) const {
    const std::int64_t block = blockIdx.x;
    for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[block * experts + e] = block_counts[e];
    for (int i = threadIdx.x; sums && i < experts + 2; i += blockDim.x) {
      double total = 0;
      for (int w = 0; w < blockDim.x / 32; ++w) total += warp_sums[w * width + i];
      sums[block * (experts + 2) + i] = total;
    }
  }
};

struct Gradient {
  std::int64_t tokens;
  int experts, k;
  RouterRule rule;
  const float *rows, *log_sums;
  const std::int32_t* indices;
  const float *dweights, *factors;
  float* dlogits;  // [T, E]
  bf16* split;     // [T, parts + 1, stride]; null: dlogits alone is wanted
  int stride;
};

}  // namespace ananke::cuda
