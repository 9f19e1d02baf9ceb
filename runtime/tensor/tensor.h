// Element types, shapes and non-owning views. A view is trivially copyable, contiguous and row-major; its memory
// belongs to an arena (device/arena.h) and may not be readable by the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace ananke {

enum class DType : std::uint8_t { f32, f64, bf16, f8_e4m3, i32, i64, u8 };

std::size_t size_of(DType dtype) noexcept;
const char* name_of(DType dtype) noexcept;  // "f32", ...

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::u8;
}

// Up to four dimensions, outermost first; a size may be 0. Rank 0 is a scalar (one element).
class Shape {
 public:
  static constexpr int max_rank = 4;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes);
  int rank() const noexcept { return rank_; }
  std::int64_t operator[](int i) const noexcept { return sizes_[static_cast<std::size_t>(i)]; }
  std::int64_t elements() const noexcept;
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, max_rank> sizes_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[128, 64]"

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  explicit operator bool() const noexcept { return data != nullptr; }
  std::int64_t elements() const noexcept { return shape.elements(); }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  // The address as T*. Checked: throws Error(internal) naming both types when T is not dtype.
  template <class T>
  T* as() const {
    if (dtype != dtype_of<T>()) wrong_dtype(dtype_of<T>());
    return static_cast<T*>(data);
  }
  // Elements [begin, begin + count) as a flat view.
  TensorView slice(std::int64_t begin, std::int64_t count) const;
  TensorView reshaped(Shape to) const;  // same number of elements, else Error(internal)

 private:
  [[noreturn]] void wrong_dtype(DType asked) const;
};

template <class T>
TensorView view_of(T* data, Shape shape) {
  return TensorView{data, dtype_of<T>(), shape};
}

}  // namespace ananke
