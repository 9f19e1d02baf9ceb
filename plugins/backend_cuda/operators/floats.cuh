// f32 numbers beside packs of activations: weights, gradients of weights.
#pragma once

#include "plugins/backend_cuda/operators/elements.cuh"

namespace ananke::cuda {

// N f32 numbers beside N elements of a pack: four at once where N is a multiple of 4, and then aligned to 16 bytes.
template <int N>
__device__ __forceinline__ Pack<float, N> load_floats(const float* from) {
  Pack<float, N> out;
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int q = 0; q < N; q += 4) {
      const Pack<float, 4> four = load<4>(from + q);
#pragma unroll
      for (int j = 0; j < 4; ++j) out.at[q + j] = four.at[j];
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) out.at[j] = from[j];
  }
  return out;
}
template <int N>
__device__ __forceinline__ void store_floats(float* to, const Pack<float, N>& values) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int q = 0; q < N; q += 4) {
      store(to + q, Pack<float, 4>{{values.at[q], values.at[q + 1], values.at[q + 2], values.at[q + 3]}});
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = values.at[j];
  }
}

}  // namespace ananke::cuda
