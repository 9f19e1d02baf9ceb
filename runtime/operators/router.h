#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// Softmax top-k router: p = softmax(x gate^T) over E experts in f32; the k largest p of each token (ties: the lower
// expert index), largest first; weights are those p, divided by their sum when `normalise`.
class Router {
 public:
  struct Sizes {
    std::int64_t tokens, hidden, experts, k;
  };
  struct Forward {
    TensorView x;     // [T, H]
    TensorView gate;  // [E, H]
    bool normalise;
    bool replay;         // indices are an input: the decision is not made again, weights follow from it
    TensorView indices;  // i32 [T, k], output (input when replay)
    TensorView weights;  // [T, k]
    TensorView counts;   // i32 [E]: tokens per expert
    Region saved, workspace;
  };
  struct Backward {
    TensorView x, gate;
    bool normalise;
    TensorView indices, weights;
    TensorView dweights;  // [T, k]
    TensorView dx;        // [T, H], *added to*: it is one of two ways into the layer's input
    TensorView dgate;     // [E, H], added to
    Region saved, workspace;
  };
  virtual ~Router() = default;
  virtual std::size_t saved(const Sizes& s) const = 0;
  virtual std::size_t workspace(const Sizes& s) const = 0;
  virtual void forward(Stream& stream, const Forward& a) = 0;
  virtual void backward(Stream& stream, const Backward& a) = 0;
};

}  // namespace ananke
