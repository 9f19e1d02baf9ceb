#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// Output projection and softmax cross-entropy, logits made chunk by chunk of tokens so that the whole [T, V] never
// exists:  loss += sum over t with targets[t] >= 0 of -log softmax(x[t] weight^T)[targets[t]]
class HeadLoss {
 public:
  struct Sizes {
    std::int64_t tokens, hidden, vocabulary;
  };
  // Loss only (evaluation, parity).
  struct Forward {
    TensorView x;        // [T, H]
    TensorView weight;   // [V, H]
    TensorView targets;  // i32 [T]; negative: this token has none
    TensorView loss;     // f64 [1], *added to*: the sum, in nats
    TensorView logits;   // [T, V], or empty: not wanted
    Region workspace;
  };
  // Loss and gradients of  scale[0] * loss.
  struct ForwardBackward {
    TensorView x, weight, targets, loss;
    TensorView scale;    // f32 [1], device: 1 / valid tokens of the whole step
    TensorView dx;       // [T, H]
    TensorView dweight;  // [V, H], added to
    TensorView logits;   // [T, V], or empty: not wanted
    Region workspace;
  };
  virtual ~HeadLoss() = default;
  virtual std::size_t workspace(const Sizes& s) const = 0;
  virtual void forward(Stream& stream, const Forward& a) = 0;
  virtual void forward_backward(Stream& stream, const ForwardBackward& a) = 0;
};

}  // namespace ananke
