#pragma once

#include "plugins/backend_cuda/operators/device_facts.h"
#include "plugins/backend_cuda/operators/faults.h"
#include "runtime/operators/permute.h"

namespace ananke::cuda {

// A counting sort without atomics on what decides the order. Activations f32 or bf16; weights and dweights f32.
class CudaPermute final : public Permute {
 public:
  CudaPermute(const DeviceFacts& facts, const Faults& faults) : facts_(facts), faults_(faults) {}
  std::size_t workspace(std::int64_t slots, std::int64_t experts) const override;
  void forward(Stream& stream, const Forward& a, Region workspace) override;
  void backward(Stream& stream, const Backward& a) override;
  void combine_forward(Stream& stream, const CombineForward& a) override;
  void combine_backward(Stream& stream, const CombineBackward& a) override;

 private:
  const DeviceFacts& facts_;
  const Faults& faults_;
};

}  // namespace ananke::cuda
