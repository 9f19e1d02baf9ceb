// Rows of the wire, read and written by kernels.
#pragma once

#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "runtime/operators/exchange.h"

namespace ananke::cuda {

struct WireRows {
  unsigned char* data;
  std::int64_t bytes, extras, indices_begin, rows;
  WireRows(const TensorView& wire, const WireRow& row)
      : data(static_cast<unsigned char*>(wire.data)),
        bytes(row.bytes()),
        extras(row.extras_begin()),
        indices_begin(row.indices_begin()),
        rows(wire.shape[0]) {}
  template <class V>
  __device__ V* values(std::int64_t at) const {
    return reinterpret_cast<V*>(data + at * bytes);
  }
  __device__ float* floats(std::int64_t at) const {  // weights, dweights
    return reinterpret_cast<float*>(data + at * bytes + extras);
  }
  __device__ std::int32_t* indices(std::int64_t at) const {
    return reinterpret_cast<std::int32_t*>(data + at * bytes + indices_begin);
  }
};

// N elements as f32, and back.
template <int N, class T>
__device__ __forceinline__ void read(const T* from, float (&values)[N]) {
  const Pack<T, N> pack = load<N>(from);
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] = to_float(pack.at[j]);
}
template <int N, class T>
__device__ __forceinline__ void write(T* to, const float (&values)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) pack.at[j] = from_float<T>(values[j]);
  store(to, pack);
}

// body(T{}, V{}, integral_constant<int, N>): types of activations and of the wire, and how many elements are accessed
// at once: as many as are 16 bytes of the wider type, or 1 where rows of `hidden` elements at these addresses do not
// allow it. Rows of the wire always do.
template <class Body>
void with_wire(DType elements, const WireRow& row, std::initializer_list<const void*> addresses, const Body& body) {
  with_elements(elements, [&](auto element) {
    with_elements(row.values, [&](auto value) {
      constexpr int full = 16 / std::max(sizeof(element), sizeof(value));
      if (packs_fit<decltype(element), full>(row.hidden, addresses)) {
        body(element, value, std::integral_constant<int, full>{});
      } else {
        body(element, value, std::integral_constant<int, 1>{});
      }
    });
  });
}

inline int exchange_threads(std::int64_t hidden) {
  return static_cast<int>(std::clamp<std::int64_t>((hidden / 4 + 31) / 32 * 32, 32, 256));
}

}  // namespace ananke::cuda
