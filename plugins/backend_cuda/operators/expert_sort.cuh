// What counting sorts by expert share: counts of blocks become where each block's rows begin.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "plugins/backend_cuda/check.h"

namespace ananke::cuda {

// A thread per expert: counts[block, e] becomes the sum over the blocks before; offsets[e + 1] the sum over all.
static __global__ void scan_blocks_kernel(std::int64_t blocks, int experts, std::int32_t* counts,
                                          std::int32_t* offsets) {
  const int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= experts) return;
  std::int32_t sum = 0;
  std::int64_t block = 0;
  for (; block + 8 <= blocks; block += 8) {  // eight loads under way
    std::int32_t here[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) here[u] = counts[(block + u) * experts + e];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      counts[(block + u) * experts + e] = sum;
      sum += here[u];
    }
  }
  for (; block < blocks; ++block) {
    const std::int32_t here = counts[block * experts + e];
    counts[block * experts + e] = sum;
    sum += here;
  }
  offsets[e + 1] = sum;
}

// One warp: offsets[e + 1] becomes the sum over experts up to e.
static __global__ void scan_experts_kernel(int experts, std::int32_t* offsets) {
  std::int32_t before = 0;
  if (threadIdx.x == 0) offsets[0] = 0;
  for (int begin = 0; begin < experts; begin += 32) {
    const int e = begin + threadIdx.x;
    std::int32_t sum = e < experts ? offsets[e + 1] : 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::int32_t other = __shfl_up_sync(0xffffffffu, sum, step);
      if (threadIdx.x >= step) sum += other;
    }
    if (e < experts) offsets[e + 1] = before + sum;
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
}

// counts: [blocks, experts]; offsets: [experts + 1].
static inline void scan_counts(cudaStream_t stream, std::int64_t blocks, int experts, std::int32_t* counts,
                               std::int32_t* offsets) {
  if (experts > 0) {
    constexpr int threads = 32;
    scan_blocks_kernel<<<(experts + threads - 1) / threads, threads, 0, stream>>>(blocks, experts, counts, offsets);
    ANANKE_CUDA_LAUNCHED("scan of blocks");
  }
  scan_experts_kernel<<<1, 32, 0, stream>>>(experts, offsets);
  ANANKE_CUDA_LAUNCHED("scan of experts");
}

}  // namespace ananke::cuda
