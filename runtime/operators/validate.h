// Checks that every operator makes when it is called, before anything is put on the stream, whatever the backend. All
// throw Error(internal) naming operator, argument, and both shapes. Those of whole operators: arguments.h.
#pragma once

#include <cstddef>

#include "runtime/base/error.h"
#include "runtime/operators/operator.h"

namespace ananke {

// `view` has this type and shape, and memory unless it has no elements.
void expect(const char* op, const char* argument, const TensorView& view, DType dtype, const Shape& shape);
// Likewise, or empty (no memory): then returns false.
bool expect_or_empty(const char* op, const char* argument, const TensorView& view, DType dtype, const Shape& shape);
void expect_rank(const char* op, const char* argument, const TensorView& view, int rank);
// At least `bytes`, aligned to 64.
void expect_region(const char* op, const char* argument, const Region& region, std::size_t bytes);

// f32
inline void expect(const char* op, const char* argument, const TensorView& view, const Shape& shape) {
  expect(op, argument, view, DType::f32, shape);
}
inline bool expect_or_empty(const char* op, const char* argument, const TensorView& view, const Shape& shape) {
  return expect_or_empty(op, argument, view, DType::f32, shape);
}

}  // namespace ananke
