// Loops over one row that the compiler turns into vector code, and an exponential and a logarithm that it can.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ananke::host {

// e^x, relative error below 1.3e-7 (tests/plugins/backend_host/row_math_test.cpp). Cody-Waite reduction to
// [-ln2/2, ln2/2] and the polynomial of Cephes' expf (S. L. Moshier, single/expf.c); no branches, no table. Results
// below FLT_MIN are 0, x > 88.376 gives infinity, NaN stays NaN.
inline float exp_of(float x) {
  constexpr float low = -87.33654f, high = 88.37626f;
  constexpr float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
  float c = x < low ? low : x;
  c = c > high ? high : c;
  const float shifted = c * 1.44269504f + to_integer;
  const float n = shifted - to_integer;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(to_integer);
  const float scale = std::bit_cast<float>((exponent + 127u) << 23);
  const float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  float result = (p * (r * r) + r + 1.0f) * scale;
  result = x < low ? 0.0f : result;
  return x > high ? std::numeric_limits<float>::infinity() : result;
}

// ln x of a normal x > 0, relative error below 2e-7 or absolute error below 1e-7. Reduction to [sqrt(1/2), sqrt(2)) and
// the polynomial of Cephes' logf (S. L. Moshier, single/logf.c); no branches, no table. Other x give some number.
inline float log_of(float x) {
  constexpr std::uint32_t lowest = 0x3f3504f3;  // bits of sqrt(1/2)
  const std::uint32_t above = std::bit_cast<std::uint32_t>(x) - lowest;
  const auto n = static_cast<float>(static_cast<std::int32_t>(above) >> 23);
  const float r = std::bit_cast<float>((above & 0x7fffffu) + lowest) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * r - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  const float z = r * r;
  return r + (p * r * z - n * 2.12194440e-4f - 0.5f * z) + n * 0.693359375f;
}

// Sum of x ln x, x in [0, 1]; x below FLT_MIN adds as good as nothing.
inline double x_log_x(const float* x, std::int64_t n) {
  constexpr float least = std::numeric_limits<float>::min();
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i] * log_of(x[i] > least ? x[i] : least));
  return sum;
}

// Sums in f64: the order that the compiler gives the lanes then does not matter to an f32 result.
inline double dot(const float* a, const float* b, std::int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// The largest element; any NaN may or may not be seen (what is computed with it becomes NaN all the same).
inline float largest(const float* x, std::int64_t n) {
  float top = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : top)
  for (std::int64_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

// x = e^(x - shift); returns the sum, f32 within a stretch and f64 over the stretches.
inline double exp_row(float* x, std::int64_t n, float shift) {
  constexpr std::int64_t stretch = 256;
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += stretch) {
    const std::int64_t end = begin + stretch < n ? begin + stretch : n;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = begin; i < end; ++i) {
      const float e = exp_of(x[i] - shift);
      x[i] = e;
      sum += e;
    }
    total += static_cast<double>(sum);
  }
  return total;
}

inline void scale_row(float* x, std::int64_t n, float factor) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace ananke::host
