#pragma once

#include "runtime/operators/add_rms_norm.h"

namespace ananke::cuda {

// Keeps 1 / sqrt(mean(h^2) + eps) of each row. Activations f32 or bf16: h is rounded to what it is kept in before its
// norm is taken; weight and dweight f32.
class CudaAddRmsNorm final : public AddRmsNorm {
 public:
  std::size_t saved(const Sizes& s) const override;
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;
};

}  // namespace ananke::cuda
