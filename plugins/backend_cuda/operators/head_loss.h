#pragma once

#include "plugins/backend_cuda/operators/faults.h"
#include "plugins/backend_cuda/operators/products.h"
#include "runtime/operators/head_loss.h"

namespace ananke::cuda {

// x, weight and dx f32 or bf16; dweight and logits f32. With bf16 the logits are f32 and their gradient is rounded to
// bf16.
class CudaHeadLoss final : public HeadLoss {
 public:
  CudaHeadLoss(const Faults& faults, Products& products) : faults_(faults), products_(products) {}
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void forward_backward(Stream& stream, const ForwardBackward& a) override;

 private:
  const Faults& faults_;
  Products& products_;
};

}  // namespace ananke::cuda
