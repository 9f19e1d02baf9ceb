#pragma once

#include "plugins/backend_cuda/operators/faults.h"
#include "runtime/operators/embedding.h"

namespace ananke::cuda {

// table and y, and dy, f32 or bf16; dtable f32.
class CudaEmbedding final : public Embedding {
 public:
  explicit CudaEmbedding(const Faults& faults) : faults_(faults) {}
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  const Faults& faults_;
};

}  // namespace ananke::cuda
