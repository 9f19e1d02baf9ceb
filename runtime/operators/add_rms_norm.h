#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// Residual addition and RMSNorm (Zhang & Sennrich 2019) in one pass:
//   h = x + delta (delta may be empty: h = x);  y = h / sqrt(mean(h^2) + eps) * weight
// y is of h as it is stored, rounded to its type: the same bits as from x = h without delta.
class AddRmsNorm {
 public:
  struct Sizes {
    std::int64_t rows, width;
  };
  struct Forward {
    TensorView x;       // [T, H]
    TensorView delta;   // [T, H] or empty
    TensorView weight;  // [H]
    TensorView h;       // [T, H]; may be x itself (in place); not written when delta is empty and h is x or empty
    TensorView y;       // [T, H]
    double eps;
    Region saved, workspace;
  };
  struct Backward {
    TensorView h;        // [T, H] as forward left it
    TensorView weight;   // [H]
    TensorView dy;       // [T, H]
    TensorView dh_in;    // [T, H] gradient that reaches h on other ways; may be empty (zero)
    TensorView dh;       // [T, H] = dh_in + the norm's part; may be dh_in itself. It is dx and ddelta alike
    TensorView dweight;  // [H], added to
    double eps;
    Region saved, workspace;
  };
  virtual ~AddRmsNorm() = default;
  virtual std::size_t saved(const Sizes& s) const = 0;
  virtual std::size_t workspace(const Sizes& s) const = 0;
  virtual void forward(Stream& stream, const Forward& a) = 0;
  virtual void backward(Stream& stream, const Backward& a) = 0;
};

}  // namespace ananke
