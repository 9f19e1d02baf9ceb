#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// y = x weight^T.
class Linear {
 public:
  struct Forward {
    TensorView x;       // [T, I]
    TensorView weight;  // [O, I]
    TensorView y;       // [T, O]
  };
  struct Backward {
    TensorView x;        // [T, I]
    TensorView weight;   // [O, I]
    TensorView dy;       // [T, O]
    TensorView dx;       // [T, I]; empty: not wanted
    bool add_dx;         // add to dx instead of replacing it
    TensorView dweight;  // [O, I], added to; empty: not wanted
  };
  virtual ~Linear() = default;
  virtual void forward(Stream& stream, const Forward& a) = 0;
  virtual void backward(Stream& stream, const Backward& a) = 0;
};

}  // namespace ananke
