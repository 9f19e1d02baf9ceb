#pragma once

#include "plugins/backend_cuda/operators/products.h"
#include "runtime/operators/linear.h"

namespace ananke::cuda {

// Activations and weight f32, or bf16 with sums in f32; dweight f32.
class CudaLinear final : public Linear {
 public:
  explicit CudaLinear(Products& products) : products_(products) {}
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  Products& products_;
};

}  // namespace ananke::cuda
