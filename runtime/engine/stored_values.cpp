#include "runtime/engine/stored_values.h"

#include <bit>
#include <cstring>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/checkpoint/safetensors_writer.h"

namespace ananke {
namespace {

void expect_stored(DType type) {
  ANANKE_CHECK(type == DType::f32 || type == DType::bf16, "owners store f32 or bf16, not {}", name_of(type));
}

}  // namespace

void narrow(std::span<const float> numbers, DType type, void* stored) {
  expect_stored(type);
  if (type == DType::f32) {
    if (!numbers.empty() && stored != numbers.data()) std::memmove(stored, numbers.data(), numbers.size_bytes());
    return;
  }
  auto* to = static_cast<std::byte*>(stored);
  for (const float number : numbers) {  // never past the number that is read
    const std::uint16_t rounded = to_bf16(number);
    std::memcpy(to, &rounded, sizeof rounded);
    to += sizeof rounded;
  }
}

void widen(const void* stored, DType type, std::span<float> numbers) {
  expect_stored(type);
  if (type == DType::f32) {
    if (!numbers.empty()) std::memcpy(numbers.data(), stored, numbers.size_bytes());
    return;
  }
  const auto* from = static_cast<const std::byte*>(stored);
  for (float& number : numbers) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof bits);
    number = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    from += sizeof bits;
  }
}

void read_f32(Device& device, const TensorView& from, float* to) {
  if (from.dtype == DType::f32) return device.read(from, to);
  std::vector<std::byte> stored(from.bytes());
  device.read(from, stored.data());
  widen(stored.data(), from.dtype, {to, static_cast<std::size_t>(from.elements())});
}

}  // namespace ananke
