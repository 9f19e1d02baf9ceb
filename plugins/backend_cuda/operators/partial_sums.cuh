// Adds up what blocks left in their rows of a table.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "plugins/backend_cuda/check.h"

namespace ananke::cuda {

inline constexpr int sum_columns = 32, sum_groups = 32;  // of a block

// sum[width] += the rows of `partial` (`stride` elements apart), in f64: thread (x, y) adds the rows y, y + sum_groups,
// ... of a column, and the first of a column the sums of all of them, in their order.
static __global__ void __launch_bounds__(sum_columns* sum_groups)
    partial_sums_kernel(std::int64_t rows, std::int64_t width, std::int64_t stride, const float* partial, float* sum) {
  __shared__ double sums[sum_groups][sum_columns];
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * sum_columns + threadIdx.x;
  double total = 0;
  if (j < width) {
    std::int64_t i = threadIdx.y;
    for (; i + 7 * sum_groups < rows; i += 8 * sum_groups) {  // eight loads under way
      float terms[8];
#pragma unroll
      for (int u = 0; u < 8; ++u) terms[u] = partial[(i + u * sum_groups) * stride + j];
#pragma unroll
      for (int u = 0; u < 8; ++u) total += static_cast<double>(terms[u]);
    }
    for (; i < rows; i += sum_groups) total += static_cast<double>(partial[i * stride + j]);
  }
  sums[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || j >= width) return;
#pragma unroll
  for (int y = 1; y < sum_groups; ++y) total += sums[y][threadIdx.x];
  sum[j] += static_cast<float>(total);
}

static inline void add_partial_sums(cudaStream_t stream, std::int64_t rows, std::int64_t width, std::int64_t stride,
                                    const float* partial, float* sum) {
  if (rows == 0 || width == 0) return;
  const auto blocks = static_cast<unsigned>((width + sum_columns - 1) / sum_columns);
  partial_sums_kernel<<<blocks, dim3(sum_columns, sum_groups), 0, stream>>>(rows, width, stride, partial, sum);
  ANANKE_CUDA_LAUNCHED("partial sums");
}

}  // namespace ananke::cuda
