// Adds up what blocks left in their rows of a table.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "plugins/backend_cuda/check.h"

namespace ananke::cuda {

// sum[width] += the rows of `partial` (`stride` elements apart), in f64 and in their order. A thread per column.
static __global__ void partial_sums_kernel(std::int64_t rows, std::int64_t width, std::int64_t stride,
                                           const float* partial, float* sum) {
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= width) return;
  double total = 0;
  std::int64_t i = 0;
  for (; i + 8 <= rows; i += 8) {  // eight loads under way
    float terms[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) terms[u] = partial[(i + u) * stride + j];
#pragma unroll
    for (int u = 0; u < 8; ++u) total += static_cast<double>(terms[u]);
  }
  for (; i < rows; ++i) total += static_cast<double>(partial[i * stride + j]);
  sum[j] += static_cast<float>(total);
}

static inline void add_partial_sums(cudaStream_t stream, std::int64_t rows, std::int64_t width, std::int64_t stride,
                                    const float* partial, float* sum) {
  constexpr int threads = 64;
  if (rows == 0 || width == 0) return;
  partial_sums_kernel<<<static_cast<unsigned>((width + threads - 1) / threads), threads, 0, stream>>>(
      rows, width, stride, partial, sum);
  ANANKE_CUDA_LAUNCHED("partial sums");
}

}  // namespace ananke::cuda
