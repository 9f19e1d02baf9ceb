// Sums and maxima over a warp or a block, in an order that never changes.
#pragma once

#include <cuda_runtime.h>

namespace ananke::cuda {

inline constexpr unsigned all_lanes = 0xffffffffu;

// The sum over the `Width` lanes around this one, in every one of them.
template <int Width = 32, class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int step = Width / 2; step > 0; step /= 2) value += __shfl_xor_sync(all_lanes, value, step);
  return value;
}

template <int Width = 32>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = Width / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(all_lanes, value, step));
  return value;
}

// The sum over a one-dimensional block of whole warps, in every thread. All threads call it. `partial`: shared, 32.
template <class T>
__device__ T block_sum(T value, T* partial) {
  value = warp_sum(value);
  const int warps = blockDim.x / 32;
  __syncthreads();  // who still reads `partial` of the call before
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  T total = 0;
  for (int i = 0; i < warps; ++i) total += partial[i];
  return total;
}

// The same with one barrier less, for a caller whose next call but one may use `partial` again.
template <class T>
__device__ T alternating_block_sum(T value, T* partial) {
  value = warp_sum(value);
  const int warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  T total = 0;
  for (int i = 0; i < warps; ++i) total += partial[i];
  return total;
}

// Likewise the maximum; NaN is left out.
__device__ inline float block_max(float value, float* partial) {
  value = warp_max(value);
  const int warps = blockDim.x / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float most = partial[0];
  for (int i = 1; i < warps; ++i) most = fmaxf(most, partial[i]);
  return most;
}

}  // namespace ananke::cuda
