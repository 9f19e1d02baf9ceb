#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// Groups token copies by expert and brings results back. A "slot" is one (token, choice) pair, numbered t * k + j.
// Rows are ordered by expert, then by slot, so the order is the same in every run.
class Permute {
 public:
  // rows[row_of_slot[s]] = x[s / k]
  struct Forward {
    TensorView x;            // [T, H]
    TensorView indices;      // i32 [T, k], each in [0, E)
    std::int64_t experts;    // E
    TensorView rows;         // [T * k, H]
    TensorView offsets;      // i32 [E + 1]: expert e has rows [offsets[e], offsets[e + 1])
    TensorView row_of_slot;  // i32 [T * k]
  };
  // dx[t] = sum over j of drows[row_of_slot[t * k + j]], in the order of j
  // dweights[s] = d_row_weights[row_of_slot[s]], where there are any
  struct Backward {
    TensorView drows;               // [T * k, H]
    TensorView row_of_slot;         // i32 [T * k]
    TensorView dx;                  // [T, H]
    TensorView d_row_weights = {};  // [T * k], or empty
    TensorView dweights = {};       // [T, k], likewise
  };
  // y[t] = sum over j of weights[t, j] * rows[row_of_slot[t * k + j]], in the order of j
  struct CombineForward {
    TensorView rows;         // [T * k, H]
    TensorView row_of_slot;  // i32 [T * k]
    TensorView weights;      // [T, k]
    TensorView y;            // [T, H]
  };
  // d_weighted[row_of_slot[s]] = dy[s / k] and row_weights[row_of_slot[s]] = weights[s]: the gradient of what is
  // summed, weight x row. Those of rows and weights follow where the rows were made (GroupedMlp::Backward).
  struct CombineBackward {
    TensorView row_of_slot, weights;
    TensorView dy;           // [T, H]
    TensorView d_weighted;   // [T * k, H]
    TensorView row_weights;  // [T * k]
  };
  virtual ~Permute() = default;
  virtual std::size_t workspace(std::int64_t slots, std::int64_t experts) const = 0;  // for forward
  virtual void forward(Stream& stream, const Forward& a, Region workspace) = 0;
  virtual void backward(Stream& stream, const Backward& a) = 0;
  virtual void combine_forward(Stream& stream, const CombineForward& a) = 0;
  virtual void combine_backward(Stream& stream, const CombineBackward& a) = 0;
};

}  // namespace ananke
