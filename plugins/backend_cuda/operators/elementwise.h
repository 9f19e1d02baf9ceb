#pragma once

#include "plugins/backend_cuda/operators/stream_slots.h"
#include "runtime/operators/elementwise.h"

namespace ananke::cuda {

// add: all f32, all bf16, or f32 b to bf16. square_sum and hash: f32 or bf16.
class CudaElementwise final : public Elementwise {
 public:
  explicit CudaElementwise(Arena& memory);
  void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y) override;
  void square_sum(Stream& stream, const TensorView& x, const TensorView& sum) override;
  void add_in_order(Stream& stream, const TensorView& terms, const TensorView& sum) override;
  void reciprocal(Stream& stream, const TensorView& x, const TensorView& y) override;
  void clip(Stream& stream, const Clip& a) override;
  void hash(Stream& stream, const TensorView& x, const TensorView& hash) override;

 private:
  StreamSlots partial_sums_;
};

}  // namespace ananke::cuda
