#include "runtime/tensor/tensor.h"

#include "runtime/base/error.h"

namespace ananke {

std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16: return 2;
    case DType::f8_e4m3:
    case DType::u8: return 1;
  }
  return 0;
}

const char* name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::bf16: return "bf16";
    case DType::f8_e4m3: return "f8_e4m3";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
  }
  return "unknown";
}

Shape::Shape(std::initializer_list<std::int64_t> sizes) {
  ANANKE_CHECK(sizes.size() <= max_rank, "a shape has at most {} dimensions, not {}", max_rank, sizes.size());
  for (std::int64_t size : sizes) {
    ANANKE_CHECK(size >= 0, "size {} in dimension {}", size, rank_);
    sizes_[static_cast<std::size_t>(rank_++)] = size;
  }
}

std::int64_t Shape::elements() const noexcept {
  std::int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product *= sizes_[static_cast<std::size_t>(i)];
  return product;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

TensorView TensorView::slice(std::int64_t begin, std::int64_t count) const {
  ANANKE_CHECK(begin >= 0 && count >= 0 && begin + count <= elements(), "slice [{}, {}) of {} elements", begin,
               begin + count, elements());
  return {static_cast<std::byte*>(data) + static_cast<std::size_t>(begin) * size_of(dtype), dtype, Shape{count}};
}

TensorView TensorView::reshaped(Shape to) const {
  ANANKE_CHECK(to.elements() == elements(), "cannot view {} as {}", to_string(shape), to_string(to));
  return {data, dtype, to};
}

void TensorView::wrong_dtype(DType asked) const {
  fail(ErrorKind::internal, "a tensor {} of {} was used as {}", to_string(shape), name_of(dtype), name_of(asked));
}

}  // namespace ananke
