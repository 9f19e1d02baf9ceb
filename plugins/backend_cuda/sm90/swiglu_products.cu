#include <array>

#include "plugins/backend_cuda/sm90/grouped_configs.cuh"
#include "plugins/backend_cuda/sm90/grouped_products.h"
#include "runtime/base/error.h"

namespace ananke::cuda::sm90 {
namespace {

void expect(const char* what, std::int64_t got, std::int64_t want) {
  ANANKE_CHECK(got == want, "grouped product with SwiGLU: {} is {}, not {}", what, got, want);
}

// Whether a kernel of 16-byte accesses can take rows without gaps of `columns` in bf16.
void expect_rows(const char* what, const void* data, std::int64_t columns) {
  ANANKE_CHECK(data && reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && columns % 8 == 0,
               "grouped product with SwiGLU: {} has rows of {} at {}", what, columns, data);
}

}  // namespace

void GroupedProducts::prepare_swiglu() {
  prepare_fused<ForwardSwiglu>();
  prepare_fused<BackwardSwiglu>();
}

void GroupedProducts::multiply_swiglu(cudaStream_t stream, const Groups& groups, const Matrices& x, const Matrices& w,
                                      const Matrices& both, const Matrices& middle) {
  ANANKE_CHECK(take(groups.count, std::array{x, w, both, middle}), "grouped product of matrices that no kernel takes");
  expect("the number of matrices", w.count, groups.count);
  expect("the length of rows", x.columns, w.columns);
  expect("the number of a matrix' rows", w.rows, 2 * middle.columns);
  expect("the length of rows of both", both.columns, 2 * middle.columns);
  expect("the number of rows of both", both.rows, x.rows);
  expect("the number of rows of the middle", middle.rows, x.rows);
  expect("the step from row to row of both", both.stride, both.columns);
  expect("the step from row to row of the middle", middle.stride, middle.columns);
  for (const Matrices& m : {x, w, both, middle}) {
    ANANKE_CHECK(m.dtype == DType::bf16, "grouped product with SwiGLU of {}", name_of(m.dtype));
  }
  expect_rows("middle", middle.data, middle.columns);
  Arguments call = arguments(stream, groups);
  call.n = static_cast<int>(middle.columns);
  call.k = static_cast<int>(x.columns);
  launch_fused<ForwardSwiglu>(stream, *maps_, blocks_, x, w, call,
                              {static_cast<bf16*>(both.data), static_cast<bf16*>(middle.data)});
}

void GroupedProducts::multiply_swiglu_backward(cudaStream_t stream, const Groups& groups, const Matrices& dy,
                                               const Matrices& w, const SwigluGradient& gradient) {
  const std::int64_t width = w.columns;
  ANANKE_CHECK(take(groups.count, std::array{dy, w}), "grouped product of matrices that no kernel takes");
  expect("the number of matrices", w.count, groups.count);
  expect("the length of rows", dy.columns, w.rows);
  ANANKE_CHECK(dy.dtype == DType::bf16 && w.dtype == DType::bf16, "grouped product with SwiGLU of {} by {}",
               name_of(dy.dtype), name_of(w.dtype));
  expect_rows("both", gradient.both, width);
  expect_rows("the gradient of both", gradient.dboth, width);
  expect_rows("middle", gradient.middle, width);
  Arguments call = arguments(stream, groups);
  call.n = static_cast<int>(width);
  call.k = static_cast<int>(dy.columns);
  launch_fused<BackwardSwiglu>(
      stream, *maps_, blocks_, dy, w, call,
      {static_cast<const bf16*>(gradient.both), gradient.row_weights, static_cast<bf16*>(gradient.dboth),
       static_cast<bf16*>(gradient.middle), gradient.sums});
}

}  // namespace ananke::cuda::sm90
