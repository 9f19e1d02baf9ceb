// What the host's exchange operators share: wire rows.
#pragma once

#include <algorithm>
#include <cstring>

#include "plugins/backend_host/operators/bf16.h"
#include "runtime/base/error.h"
#include "runtime/operators/exchange.h"

namespace ananke::host {

// Tasks of at least this many elements.
constexpr std::int64_t exchange_elements_per_task = 1 << 14;

inline std::int64_t rows_per_task(std::int64_t elements_per_row) {
  return std::max<std::int64_t>(1, exchange_elements_per_task / std::max<std::int64_t>(1, elements_per_row));
}

// Rows of the wire, read and written.
class Wire {
 public:
  Wire(const TensorView& wire, const WireRow& row)
      : data_(wire.as<std::uint8_t>()), row_(row), bytes_(row.bytes()), extras_(row.extras_begin()) {}

  void store(std::int64_t at, const float* values) const {
    if (row_.values == DType::f32) {
      if (row_.hidden) std::memcpy(begin(at), values, static_cast<std::size_t>(row_.hidden) * sizeof(float));
      return;
    }
    auto* out = reinterpret_cast<std::uint16_t*>(begin(at));
    for (std::int64_t i = 0; i < row_.hidden; ++i) out[i] = to_bf16(values[i]);
  }
  // The values as f32: in place, or widened into `buffer` [hidden].
  const float* load(std::int64_t at, float* buffer) const {
    if (row_.values == DType::f32) return reinterpret_cast<const float*>(begin(at));
    const auto* in = reinterpret_cast<const std::uint16_t*>(begin(at));
    for (std::int64_t i = 0; i < row_.hidden; ++i) buffer[i] = from_bf16(in[i]);
    return buffer;
  }
  void load_into(std::int64_t at, float* values) const {
    const float* from = load(at, values);
    if (from != values && row_.hidden) std::memcpy(values, from, static_cast<std::size_t>(row_.hidden) * sizeof(float));
  }
  float* floats(std::int64_t at) const { return reinterpret_cast<float*>(begin(at) + extras_); }  // weights, dweights
  std::int32_t* indices(std::int64_t at) const {
    return reinterpret_cast<std::int32_t*>(begin(at) + row_.indices_begin());
  }

 private:
  std::uint8_t* begin(std::int64_t at) const { return data_ + at * bytes_; }
  std::uint8_t* data_;
  WireRow row_;
  std::int64_t bytes_, extras_;
};

inline void add_scaled(const float* from, float weight, std::int64_t n, float* to) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) to[i] += weight * from[i];
}

// How many copies there are, looked at on the stream.
inline std::int64_t count_of(const char* op, const Exchange::Copies& copies) {
  const std::int64_t count = *copies.count.as<std::int32_t>();
  ANANKE_CHECK(count >= 0 && count <= copies.rows.shape[0], "{}: {} copies in buffers for {}", op, count,
               copies.rows.shape[0]);
  return count;
}

}  // namespace ananke::host
