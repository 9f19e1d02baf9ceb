#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// Bandwidth-bound odds and ends of a step.
class Elementwise {
 public:
  virtual ~Elementwise() = default;
  // y = a + b; y may be a or b. A backend that stores gradients in a narrower type (Backend::stores_in) also adds f32 b
  // to a and y of that type: the sum is f32, rounded to nearest once.
  virtual void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y) = 0;
  // sum[0] += sum of x^2, accumulated in f64 (so it is finite exactly when every x is). f32 x, or of a type
  // that the backend stores in; f64 [1] sum.
  virtual void square_sum(Stream& stream, const TensorView& x, const TensorView& sum) = 0;
  // sum[0] += terms[0], then += terms[1] and so on, in this order: what square_sum made apart has the bits of what it
  // would have made one after the other. f64 [n] terms, f64 [1] sum.
  virtual void add_in_order(Stream& stream, const TensorView& terms, const TensorView& sum) = 0;
  // y[0] = 1 / x[0], or 0 when x[0] is 0. f64 [1] x, f32 [1] y: the loss scale from a token count.
  virtual void reciprocal(Stream& stream, const TensorView& x, const TensorView& y) = 0;
  // The step's decision, on the device: norm = sqrt(square_sum[0]); finite[0] = norm and loss[0] are finite;
  // scale[0] = clip_norm > 0 and norm > clip_norm ? clip_norm / (norm + 1e-6) : 1  (as torch's clip_grad_norm_).
  struct Clip {
    TensorView square_sum;  // f64 [1]
    TensorView loss;        // f64 [1]
    double clip_norm;
    TensorView scale;   // f32 [1]
    TensorView finite;  // i32 [1]
  };
  virtual void clip(Stream& stream, const Clip& a) = 0;
  // A hash of x's bits: hash[0] = sum over elements i of splitmix64(i x 2^32 + bits of x[i]), modulo 2^64, so that it
  // is the same in whatever order it is summed; hash[1] = its complement, so that a maximum over ranks gives the
  // largest hash and the complement of the smallest. x of less than 2^32 elements, f32 or of a type that the backend
  // stores in (bits above those of x[i] are 0), i64 [2] hash.
  virtual void hash(Stream& stream, const TensorView& x, const TensorView& hash) = 0;
};

}  // namespace ananke
