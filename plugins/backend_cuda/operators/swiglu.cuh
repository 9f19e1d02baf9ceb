// SwiGLU and its gradient on packs of elements, for every kernel that computes them: the same bits from each.
#pragma once

#include <cstdint>
#include <type_traits>

#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"

namespace ananke::cuda {

// 1 / (1 + e^-z); for bf16 by the fast functions, whose errors of 1e-6 are far below what is rounded away.
template <class T>
__device__ __forceinline__ float sigmoid_of(float z) {
  if constexpr (std::is_same_v<T, float>) {
    return 1.0f / (1.0f + expf(-z));
  } else {
    float power, sigmoid;  // numbers below 1e-38 count as 0
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid) : "f"(1.0f + power));
    return sigmoid;
  }
}

// silu(gate) * up
template <class T, int N>
__device__ __forceinline__ Pack<T, N> swiglu(const Pack<T, N>& gate, const Pack<T, N>& up) {
  Pack<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float z = to_float(gate.at[j]);
    out.at[j] = from_float<T>(z * sigmoid_of<T>(z) * to_float(up.at[j]));
  }
  return out;
}

// Of a pack whose result goes on with a weight, from the gradient of what goes on. d silu(z) / dz = s + silu(z) (1 - s)
// with s = 1 / (1 + e^-z). `middle`: weight x result, made again for the next matrix' gradient. Gives <result,
// gradient>, the pack's part of the weight's gradient.
template <class T, int N>
__device__ __forceinline__ float swiglu_backward(const Pack<T, N>& gate, const Pack<T, N>& up,
                                                 const Pack<T, N>& gradient, float weight, Pack<T, N>& middle,
                                                 Pack<T, N>& dgate, Pack<T, N>& dup) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float z = to_float(gate.at[j]), by = to_float(up.at[j]), unweighted = to_float(gradient.at[j]);
    const float sigmoid = sigmoid_of<T>(z), silu = z * sigmoid, d = weight * unweighted;
    sum = fmaf(silu * by, unweighted, sum);
    middle.at[j] = from_float<T>(weight * (silu * by));
    dup.at[j] = from_float<T>(d * silu);
    dgate.at[j] = from_float<T>(d * by * fmaf(silu, 1.0f - sigmoid, sigmoid));
  }
  return sum;
}

inline constexpr int swiglu_threads = 256;

// A thread per pack of `middle`; packs: of one of its rows. `used`: rows that groups have, on the device.
template <int N, class T>
__global__ void swiglu_kernel(std::int64_t count, std::int64_t packs, const std::int32_t* used, const T* both,
                              T* middle) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * swiglu_threads + threadIdx.x;
  if (i >= count || i >= *used * packs) return;
  const std::int64_t gate = (i + i / packs * packs) * N, up = gate + packs * N;
  store(middle + i * N, swiglu(load<N>(both + gate), load<N>(both + up)));
}

// A warp per row, whose result goes on with a weight (row_weights null: 1). `dboth`: the gradient of `middle` in its
// first half, then those of both.
template <int N, class T>
__global__ void swiglu_backward_kernel(std::int64_t rows, std::int64_t packs, const std::int32_t* used,
                                       const float* row_weights, const T* both, T* middle, T* dboth,
                                       float* d_row_weights) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (swiglu_threads / 32) + threadIdx.x / 32;
  if (row >= rows || row >= *used) return;
  const float weight = row_weights ? row_weights[row] : 1.0f;
  double product = 0;
  for (std::int64_t i = threadIdx.x % 32; i < packs; i += 32) {
    const std::int64_t gate = (2 * row * packs + i) * N, up = gate + packs * N;
    Pack<T, N> m, dgate, dup;
    product += static_cast<double>(
        swiglu_backward(load<N>(both + gate), load<N>(both + up), load<N>(dboth + gate), weight, m, dgate, dup));
    store(middle + (row * packs + i) * N, m);
    store(dboth + up, dup);
    store(dboth + gate, dgate);
  }
  if (!d_row_weights) return;
  product = warp_sum(product);
  if (threadIdx.x % 32 == 0) d_row_weights[row] = static_cast<float>(product);
}

}  // namespace ananke::cuda
