// Cuts a region into aligned pieces, in order. Run without memory it adds up the size: the same code says how much is
// needed and where everything lies, so the two cannot disagree.
#pragma once

#include "runtime/base/error.h"
#include "runtime/operators/operator.h"

namespace ananke {

class RegionCutter {
 public:
  static constexpr std::size_t alignment = 256;
  RegionCutter() = default;  // sizes only
  explicit RegionCutter(Region region) : region_(region) {}

  TensorView tensor(DType dtype, Shape shape) {
    TensorView view{nullptr, dtype, shape};
    view.data = cut(view.bytes());
    return view;
  }
  Region region(std::size_t bytes) { return {cut(bytes), bytes}; }
  std::size_t used() const noexcept { return used_; }

 private:
  void* cut(std::size_t bytes) {
    const std::size_t begin = used_;
    used_ += (bytes + alignment - 1) / alignment * alignment;
    if (!region_.data) return nullptr;
    ANANKE_CHECK(used_ <= region_.bytes, "{} bytes cut from a region of {}", used_, region_.bytes);
    return static_cast<std::byte*>(region_.data) + begin;
  }
  Region region_;
  std::size_t used_ = 0;
};

}  // namespace ananke
