// Reference of Wire (operators/wire.h): the definitions in plain loops, codes found by trying all of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/operators/wire.h"

namespace ananke::reference {

inline std::uint16_t to_bf16(float x) {
  if (std::isnan(x)) return 0x7fc0;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t low = bits & 0xffff, half = 0x8000;
  std::uint32_t high = bits >> 16;
  if (low > half || (low == half && (high & 1))) ++high;
  return static_cast<std::uint16_t>(high);
}

inline float from_bf16(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

inline void landing_sum(std::int64_t ranks, std::int64_t n, const std::uint16_t* landed, float* sum, bool add) {
  for (std::int64_t i = 0; i < n; ++i) {
    float total = 0;
    for (std::int64_t p = 0; p < ranks; ++p) total += from_bf16(landed[p * n + i]);
    sum[i] = add ? sum[i] + total : total;
  }
}

inline double from_e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -size : size;
}

// The nearest code; of two equally near ones the even.
inline std::uint8_t to_e4m3(double x) {
  if (!std::isfinite(x)) return 0x7f;
  std::uint8_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 0x7f; ++code) {
    const double d = std::abs(from_e4m3(static_cast<std::uint8_t>(code)) - std::abs(x));
    if (d < distance || (d == distance && code % 2 == 0)) best = static_cast<std::uint8_t>(code), distance = d;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

// Exponent + 127 of the smallest power of two, within what the byte holds and a float can divide by, that brings
// `largest` to 448.
inline std::uint8_t block_scale(double largest) {
  if (largest == 0) return 127;
  int exponent = -126;
  while (std::ldexp(448, exponent) < largest) ++exponent;
  return static_cast<std::uint8_t>(exponent + 127);
}

// Calls visit(index in the piece, index of the block's scale in the piece).
template <class Visit>
void visit_blocks(const Wire::BlockPiece& piece, const Visit& visit) {
  const std::int64_t first_row = piece.begin / piece.columns / Wire::block;
  const std::int64_t across = (piece.columns + Wire::block - 1) / Wire::block;
  for (std::int64_t i = 0; i < piece.count; ++i) {
    const std::int64_t row = (piece.begin + i) / piece.columns, column = (piece.begin + i) % piece.columns;
    visit(i, (row / Wire::block - first_row) * across + column / Wire::block);
  }
}

inline void quantise(const Wire::BlockPiece& piece, const float* values, std::uint8_t* bytes) {
  const float* x = values + piece.values;
  std::uint8_t* scales = bytes + piece.scales;
  for (std::int64_t block = 0; block < Wire::scales_of(piece); ++block) {
    double largest = 0;
    visit_blocks(piece, [&](std::int64_t i, std::int64_t of) {
      if (of == block && std::isfinite(x[i])) largest = std::max(largest, std::abs(static_cast<double>(x[i])));
    });
    scales[block] = block_scale(largest);
  }
  visit_blocks(piece, [&](std::int64_t i, std::int64_t of) {
    bytes[piece.codes + i] = to_e4m3(std::ldexp(static_cast<double>(x[i]), 127 - scales[of]));
  });
}

inline void dequantise(const Wire::BlockPiece& piece, const std::uint8_t* bytes, float* values) {
  visit_blocks(piece, [&](std::int64_t i, std::int64_t of) {
    values[piece.values + i] =
        static_cast<float>(std::ldexp(from_e4m3(bytes[piece.codes + i]), bytes[piece.scales + of] - 127));
  });
}

}  // namespace ananke::reference
