#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// The elementwise ends of an optimizer whose direction is made of whole matrices (Muon), f32 as torch.optim.Muon.
// Nothing changes when finite[0] is 0.
class Momentum {
 public:
  // g = gradient * scale[0];  m = lerp(m, g, 1 - mu);  out = nesterov ? lerp(g, m, mu) : m
  struct Accumulate {
    TensorView gradient, momentum, out;  // [n]; `out` may not overlap the others
    double mu;
    bool nesterov;
    TensorView scale;   // f32 [1], device
    TensorView finite;  // i32 [1], device
  };
  // weight = weight * keep - rate * direction
  struct Apply {
    TensorView weight, direction;  // [n]
    double keep, rate;
    TensorView finite;  // i32 [1], device
  };
  virtual ~Momentum() = default;
  virtual void accumulate(Stream& stream, const Accumulate& a) = 0;
  virtual void apply(Stream& stream, const Apply& a) = 0;
};

}  // namespace ananke
