#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// y[t] = table[tokens[t]].
class Embedding {
 public:
  struct Forward {
    TensorView tokens;  // i32 [T], each in [0, V)
    TensorView table;   // [V, H]
    TensorView y;       // [T, H]
  };
  struct Backward {
    TensorView tokens;  // i32 [T]
    TensorView dy;      // [T, H]
    TensorView dtable;  // [V, H], added to; rows summed in token order
  };
  virtual ~Embedding() = default;
  virtual void forward(Stream& stream, const Forward& a) = 0;
  virtual void backward(Stream& stream, const Backward& a) = 0;
};

}  // namespace ananke
