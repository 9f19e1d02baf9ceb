#pragma once

#include "plugins/backend_cuda/operators/device_facts.h"
#include "plugins/backend_cuda/operators/faults.h"
#include "runtime/operators/attention.h"

namespace ananke::cuda {

// Tiles of keys and values in shared memory, f32 arithmetic, online softmax; the backward pass computes scores again,
// once for dk and dv and once for dq, so that no two blocks add to one place: the same bits in every run. Activations
// f32 or bf16; norms and their gradients f32. Heads of at most 256 elements.
class CudaAttention final : public Attention {
 public:
  // `widest`: the largest type of activations that `workspace` makes room for.
  CudaAttention(const DeviceFacts& facts, const Faults& faults, DType widest);
  std::size_t saved(const Sizes& s) const override;
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  const Faults& faults_;
  const DType widest_;
};

}  // namespace ananke::cuda
