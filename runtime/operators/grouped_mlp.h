#pragma once

#include <span>

#include "runtime/operators/operator.h"

namespace ananke {

// G matrices of one shape, `stride` elements from one to the next (experts lie in a gathered unit like that).
struct MatrixStack {
  TensorView first;         // [rows, columns] of group 0
  std::int64_t stride = 0;  // elements; not used when G is 1
};

// SwiGLU MLP (Shazeer 2020) over rows grouped by weights: for row r of group g
//   y[r] = down_g (silu(gate_g x[r]) * (up_g x[r])),  silu(z) = z / (1 + exp(-z))
// A dense layer is the case G = 1. The number of rows in use, offsets[G] <= R, may be known on the device only; a
// caller who knows the offsets gives them in `known_offsets` [G + 1] as well, equal to those on the device, and read in
// the call: a backend that needs them on the host then does not wait for the device. Else it is empty.
//
// Where rows go on with a weight each (combine: weight[r] y[r] is what is summed), the gradient of the weights is made
// here, so that a recompute needs no y: <dy, down z> = <dy down, z> with z = silu(gate x) * (up x).
class GroupedMlp {
 public:
  struct Sizes {
    std::int64_t rows, hidden, width, groups;  // rows: the capacity R
  };
  struct Weights {
    MatrixStack gate, up;  // [F, H]
    MatrixStack down;      // [H, F]
  };
  struct Forward {
    TensorView x;        // [R, H]
    TensorView offsets;  // i32 [G + 1], ascending from 0
    Weights weights;
    TensorView y;  // [R, H]; rows from offsets[G] on are not touched. Empty: only `saved` is made (recompute)
    Region saved, workspace;
    std::span<const std::int64_t> known_offsets = {};
  };
  struct Backward {
    TensorView x, offsets;
    Weights weights;
    TensorView dy;     // [R, H]; with row_weights: of row_weights[r] y[r]
    TensorView dx;     // [R, H]
    Weights gradient;  // added to, and of groups without rows not touched; or `overwrite`
    Region saved, workspace;
    std::span<const std::int64_t> known_offsets = {};
    TensorView row_weights = {};    // f32 [R], or empty: all 1
    TensorView d_row_weights = {};  // f32 [R] = <dy[r], y[r]>, where there are row_weights
    // The gradient holds nothing of use: it is written, with zeros for groups without rows.
    bool overwrite = false;
  };
  virtual ~GroupedMlp() = default;
  virtual std::size_t saved(const Sizes& s) const = 0;
  virtual std::size_t workspace(const Sizes& s) const = 0;
  virtual void forward(Stream& stream, const Forward& a) = 0;
  virtual void backward(Stream& stream, const Backward& a) = 0;
};

}  // namespace ananke
