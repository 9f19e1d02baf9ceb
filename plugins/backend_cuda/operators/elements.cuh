// Element types of activations, f32 and bf16, as kernels see them; vector accesses of 16 bytes where data allows them.
// All arithmetic is f32 or f64: bf16 is how values lie in memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "plugins/backend_cuda/operators/elements.h"

namespace ananke::cuda {

using bf16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }

// To the nearest, ties to even; NaN stays NaN.
template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return __float2bfloat16_rn(x);
  }
}

// N elements that are read and written at once.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, class T>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& values) {
  *reinterpret_cast<Pack<T, N>*>(to) = values;
}

// For what the next to read it finds in memory and not in the cache, for its size: leaves the cache first.
template <int N, class T>
__device__ __forceinline__ void store_passing(T* to, const Pack<T, N>& values) {
  if constexpr (sizeof(values) == sizeof(uint4)) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&values));
  } else {
    store(to, values);
  }
}

template <class T>
T* data(const TensorView& view) {
  return static_cast<T*>(view.data);
}

// body(T{}) with T the type of `elements`.
template <class Body>
void with_elements(DType elements, const Body& body) {
  if (elements == DType::bf16) {
    body(bf16{});
  } else {
    body(float{});
  }
}

// Whether rows of `width` elements at all these addresses (null: there is none) can be accessed N elements at once.
template <class T, int N>
bool packs_fit(std::int64_t width, std::initializer_list<const void*> addresses) {
  if (width % N != 0) return false;
  for (const void* address : addresses) {
    if (reinterpret_cast<std::uintptr_t>(address) % (sizeof(T) * N) != 0) return false;
  }
  return true;
}

// body(std::integral_constant<int, N>) with N elements of T in 16 bytes where rows allow it, else 1.
template <class T, class Body>
void with_packs(std::int64_t width, std::initializer_list<const void*> addresses, const Body& body) {
  constexpr int full = 16 / sizeof(T);
  if (packs_fit<T, full>(width, addresses)) {
    body(std::integral_constant<int, full>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

inline std::int64_t blocks_for(std::int64_t n, std::int64_t per_block) { return (n + per_block - 1) / per_block; }

}  // namespace ananke::cuda
