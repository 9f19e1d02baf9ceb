#include "runtime/operators/validate.h"

namespace ananke {

void expect(const char* op, const char* argument, const TensorView& view, DType dtype, const Shape& shape) {
  if (view.dtype != dtype || view.shape != shape) {
    fail(ErrorKind::internal, "{}: {} is {} {}, but {} {} is needed", op, argument, name_of(view.dtype),
         to_string(view.shape), name_of(dtype), to_string(shape));
  }
  if (!view.data && view.elements() > 0) {
    fail(ErrorKind::internal, "{}: {} of {} has no memory", op, argument, to_string(shape));
  }
}

bool expect_or_empty(const char* op, const char* argument, const TensorView& view, DType dtype, const Shape& shape) {
  if (!view) return false;
  expect(op, argument, view, dtype, shape);
  return true;
}

void expect_rank(const char* op, const char* argument, const TensorView& view, int rank) {
  if (view.shape.rank() != rank) {
    fail(ErrorKind::internal, "{}: {} is {}, but {} dimensions are needed", op, argument, to_string(view.shape), rank);
  }
}

void expect_region(const char* op, const char* argument, const Region& region, std::size_t bytes) {
  if (region.bytes < bytes || (bytes > 0 && !region.data)) {
    fail(ErrorKind::internal, "{}: {} has {} bytes, but {} are needed", op, argument, region.data ? region.bytes : 0,
         bytes);
  }
  if (reinterpret_cast<std::uintptr_t>(region.data) % 64 != 0) {
    fail(ErrorKind::internal, "{}: {} is not aligned to 64 bytes", op, argument);
  }
}

}  // namespace ananke
