// bfloat16 on the host: the upper half of an f32.
#pragma once

#include <bit>
#include <cstdint>

namespace ananke::host {

// To the nearest, ties to even, as the hardware does; NaN stays NaN.
inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const std::uint32_t result = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
  return static_cast<std::uint16_t>(result >> 16);
}

inline float from_bf16(std::uint16_t value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

}  // namespace ananke::host
