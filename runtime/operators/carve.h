// Cuts a region into arrays. The same code run over no memory counts the bytes, so sizes and addresses cannot differ.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/operators/operator.h"

namespace ananke {

class Carve {
 public:
  Carve() = default;
  explicit Carve(const Region& region) : base_(static_cast<std::byte*>(region.data)) {}
  // `count` elements aligned to 64 bytes; null while counting.
  template <class T>
  T* take(std::int64_t count) {
    T* at = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return at;
  }
  std::size_t used() const noexcept { return used_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace ananke
