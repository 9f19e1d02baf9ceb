#pragma once

#include "plugins/backend_cuda/operators/device_facts.h"
#include "plugins/backend_cuda/operators/faults.h"
#include "plugins/backend_cuda/operators/products.h"
#include "runtime/operators/router.h"

namespace ananke::cuda {

// x and dx f32 or bf16, all else f32: with bf16, x is multiplied by three bf16 numbers for each of the
// gate's, which add up to it, on tensor cores with f32 sums, so that a decision depends on the rounding of x alone.
// Keeps scores (softmax) or logits (sigmoid), and the log-sums.
class CudaRouter final : public Router {
 public:
  CudaRouter(const DeviceFacts& facts, const Faults& faults, Products& products)
      : facts_(facts), faults_(faults), products_(products) {}
  std::size_t saved(const Sizes& s) const override;
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  const DeviceFacts& facts_;
  const Faults& faults_;
  Products& products_;
};

}  // namespace ananke::cuda
