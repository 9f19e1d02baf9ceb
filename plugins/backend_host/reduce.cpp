#include "plugins/backend_host/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/error.h"

namespace ananke {
namespace {

// Small enough that the running result stays in the first-level cache while part after part is added.
constexpr std::int64_t chunk = 2048;

template <class T>
struct Sum {
  T operator()(T a, T b) const { return a + b; }
};
template <>
struct Sum<std::int64_t> {
  std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};
template <class T>
struct Max {
  T operator()(T a, T b) const { return b > a || b != b ? b : a; }
};

template <class T, class Op>
void reduce(std::span<const void* const> parts, T* out, std::int64_t count, Op op) {
  for (std::int64_t begin = 0; begin < count; begin += chunk) {
    const std::int64_t n = std::min(chunk, count - begin);
    T* __restrict to = out + begin;
    std::memcpy(to, static_cast<const T*>(parts[0]) + begin, static_cast<std::size_t>(n) * sizeof(T));
    for (std::size_t p = 1; p < parts.size(); ++p) {
      const T* __restrict from = static_cast<const T*>(parts[p]) + begin;
      for (std::int64_t i = 0; i < n; ++i) to[i] = op(to[i], from[i]);
    }
  }
}

template <class T>
void reduce(Reduction reduction, std::span<const void* const> parts, void* out, std::int64_t count) {
  if (reduction == Reduction::sum) {
    reduce(parts, static_cast<T*>(out), count, Sum<T>());
  } else {
    reduce(parts, static_cast<T*>(out), count, Max<T>());
  }
}

}  // namespace

void reduce_in_order(DType dtype, Reduction reduction, std::span<const void* const> parts, void* out,
                     std::int64_t count) {
  switch (dtype) {
    case DType::f32: return reduce<float>(reduction, parts, out, count);
    case DType::f64: return reduce<double>(reduction, parts, out, count);
    case DType::i64: return reduce<std::int64_t>(reduction, parts, out, count);
    default: fail(ErrorKind::internal, "a reduction of {}: f32, f64 and i64 are offered", name_of(dtype));
  }
}

void sum_bf16_in_order(std::span<const void* const> parts, float* out, std::int64_t count, bool add) {
  float total[chunk];
  for (std::int64_t begin = 0; begin < count; begin += chunk) {
    const std::int64_t n = std::min(chunk, count - begin);
    std::fill_n(total, n, 0.0f);
    for (const void* part : parts) {
      const std::uint16_t* from = static_cast<const std::uint16_t*>(part) + begin;
      for (std::int64_t i = 0; i < n; ++i) total[i] += std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
    }
    for (std::int64_t i = 0; i < n; ++i) out[begin + i] = add ? out[begin + i] + total[i] : total[i];
  }
}

}  // namespace ananke
