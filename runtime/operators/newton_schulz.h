#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// Newton-Schulz iteration of Muon (Jordan et al. 2024, as torch.optim.Muon): replaces each matrix by one with the same
// singular vectors and singular values near 1. Per matrix, after transposing it when rows > columns:
//   X = M / max(|M|_F, eps);   `steps` times:  A = X X^T,  B = b A + c A A,  X = a X + B X
// and transposed back. A matrix of zeros stays one. What a matrix becomes does not depend on the others of the batch.
class NewtonSchulz {
 public:
  // bf16: the matrix and what each product gives are rounded to it (sums are f32), as torch does on a bf16 matrix.
  enum class Precision { f32, bf16 };
  struct Sizes {
    std::int64_t count, rows, columns;
  };
  struct Arguments {
    TensorView matrices;  // [N, R, C], in place
    int steps;            // >= 0
    double a, b, c, eps;  // eps > 0
    Precision precision;
    TensorView finite;  // i32 [1], device; 0: nothing changes
    Region workspace;
  };
  virtual ~NewtonSchulz() = default;
  virtual std::size_t workspace(const Sizes& s) const = 0;
  virtual void run(Stream& stream, const Arguments& a) = 0;
};

}  // namespace ananke
