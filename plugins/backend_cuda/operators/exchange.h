#pragma once

#include "plugins/backend_cuda/operators/device_facts.h"
#include "plugins/backend_cuda/operators/faults.h"
#include "runtime/operators/exchange.h"

namespace ananke::cuda {

// Activations f32 or bf16, whatever the wire holds; weights and dweights f32. At most 32 choices for each token.
class CudaExchange final : public Exchange {
 public:
  CudaExchange(const DeviceFacts& facts, const Faults& faults) : facts_(facts), faults_(faults) {}
  std::size_t workspace(std::int64_t local_experts) const override;
  void plan(Stream& stream, const Plan& a) override;
  void pack(Stream& stream, const Pack& a) override;
  void collect(Stream& stream, const Collect& a) override;
  void expand(Stream& stream, const Expand& a) override;
  void combine(Stream& stream, const Combine& a) override;
  void combine_backward(Stream& stream, const CombineBackward& a) override;
  void expand_backward(Stream& stream, const ExpandBackward& a) override;

 private:
  const DeviceFacts& facts_;
  const Faults& faults_;
};

}  // namespace ananke::cuda
