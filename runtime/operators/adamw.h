#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// AdamW with decoupled weight decay (Loshchilov & Hutter 2019), as torch.optim.AdamW, elementwise in f32:
//   g = gradient * scale[0];  w *= 1 - lr * weight_decay;  m = lerp(m, g, 1 - beta1);  v = beta2 v + (1 - beta2) g^2
//   w -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
// Nothing changes when finite[0] is 0. A backend that stores in a narrower type (Backend::stores_in) also takes weight,
// gradient and both states in it: the same in f32, each rounded to nearest when it is stored, as torch's fused AdamW on
// parameters of that type.
class AdamWUpdate {
 public:
  struct Arguments {
    TensorView weight, gradient, exp_avg, exp_avg_sq;  // [n], of one type
    double lr, beta1, beta2, eps, weight_decay;
    std::uint64_t step;  // updates applied, this one included: from 1
    TensorView scale;    // f32 [1], device
    TensorView finite;   // i32 [1], device
  };
  virtual ~AdamWUpdate() = default;
  virtual void update(Stream& stream, const Arguments& a) = 0;
};

}  // namespace ananke
