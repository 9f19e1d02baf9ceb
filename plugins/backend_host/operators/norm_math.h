// RMSNorm of one row, forward and backward: of the residual stream and of the heads' queries and keys.
#pragma once

#include <cmath>
#include <cstdint>

#include "plugins/backend_host/operators/row_math.h"
#include "plugins/backend_host/thread_pool.h"

namespace ananke::host {

// 1 / sqrt(mean(x^2) + eps)
inline float inverse_rms(std::int64_t width, double eps, const float* x) {
  return static_cast<float>(1 / std::sqrt(dot(x, x, width) / static_cast<double>(width) + eps));
}

inline void normalise_row(std::int64_t width, float inverse, const float* x, const float* weight, float* y) {
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) y[j] = x[j] * inverse * weight[j];
}

// dx = dx_in (null: 0) + r weight dy - r^3 x mean(weight dy x) with r = `inverse`; dx may be dx_in.
// dweight += dy x r.
inline void normalise_row_backward(std::int64_t width, float inverse, const float* x, const float* weight,
                                   const float* dy, const float* dx_in, float* dx, float* dweight) {
  double product = 0;
#pragma omp simd reduction(+ : product)
  for (std::int64_t j = 0; j < width; ++j) {
    product += static_cast<double>(weight[j] * dy[j]) * static_cast<double>(x[j]);
  }
  const double r = inverse;
  const float pull = static_cast<float>(r * r * r * product / static_cast<double>(width));
  if (dx_in) {
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j) dx[j] = dx_in[j] + (inverse * weight[j] * dy[j] - x[j] * pull);
  } else {
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j) dx[j] = inverse * weight[j] * dy[j] - x[j] * pull;
  }
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) dweight[j] += dy[j] * x[j] * inverse;
}

// sum[width] += the `blocks` rows of `partial` (`stride` elements apart), in f64 and in their order; threads share
// columns.
inline void add_partial_sums(ThreadPool& pool, std::int64_t blocks, std::int64_t width, std::int64_t stride,
                             const float* partial, float* sum) {
  constexpr std::int64_t columns_per_task = 64;
  if (blocks == 0) return;
  pool.run_blocks(width, columns_per_task, [&](std::int64_t begin, std::int64_t end) {
    double total[columns_per_task] = {};
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (std::int64_t j = begin; j < end; ++j) total[j - begin] += static_cast<double>(partial[block * stride + j]);
    }
    for (std::int64_t j = begin; j < end; ++j) sum[j] += static_cast<float>(total[j - begin]);
  });
}

}  // namespace ananke::host
