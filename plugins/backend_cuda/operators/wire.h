#pragma once

#include "plugins/backend_cuda/operators/faults.h"
#include "runtime/operators/wire.h"

namespace ananke::cuda {

class CudaWire final : public Wire {
 public:
  explicit CudaWire(const Faults& faults) : faults_(faults) {}
  void to_bf16(Stream& stream, const ToBf16& a) override;
  void from_bf16(Stream& stream, const TensorView& x, const TensorView& y) override;
  void landing_sum(Stream& stream, const LandingSum& a) override;
  void quantise(Stream& stream, const TensorView& pieces, const TensorView& values, const TensorView& bytes) override;
  void dequantise(Stream& stream, const TensorView& pieces, const TensorView& bytes, const TensorView& values) override;

 private:
  const Faults& faults_;
};

}  // namespace ananke::cuda
