// Reference of Elementwise (operators/elementwise.h): the definition in plain loops.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace ananke::reference {

template <class S>
void add(std::int64_t n, const S* a, const S* b, S* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

template <class S>
void square_sum(std::int64_t n, const S* x, double* sum) {
  for (std::int64_t i = 0; i < n; ++i) *sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
}

inline std::uint64_t splitmix64(std::uint64_t z) {  // Steele, Lea, Flood 2014
  z += 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

// Elements [begin, end) of x.
inline std::uint64_t hash(const float* x, std::int64_t begin, std::int64_t end) {
  std::uint64_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    sum += splitmix64((static_cast<std::uint64_t>(i) << 32) + std::bit_cast<std::uint32_t>(x[i]));
  }
  return sum;
}

inline void clip(double square_sum, double loss, double clip_norm, float* scale, std::int32_t* finite) {
  const double norm = std::sqrt(square_sum);
  *finite = std::isfinite(norm) && std::isfinite(loss) ? 1 : 0;
  *scale = clip_norm > 0 && norm > clip_norm ? static_cast<float>(clip_norm / (norm + 1e-6)) : 1.0f;
}

}  // namespace ananke::reference
