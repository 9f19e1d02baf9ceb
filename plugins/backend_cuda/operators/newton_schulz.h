#pragma once

#include "plugins/backend_cuda/operators/grouped_mlp.h"
#include "plugins/backend_cuda/operators/products.h"
#include "plugins/backend_cuda/sm90/newton_schulz_steps.h"
#include "runtime/operators/newton_schulz.h"

namespace ananke::cuda {

// Several matrices at a time: in bf16 where sides are multiples of 8 and not small by a kernel of this backend's own,
// else by batched products of cuBLASLt.
class CudaNewtonSchulz final : public NewtonSchulz {
 public:
  CudaNewtonSchulz(const DeviceFacts& facts, Products& products, GroupedKernels kernels)
      : products_(products), steps_(facts), kernels_(kernels) {}
  std::size_t workspace(const Sizes& s) const override;
  void run(Stream& stream, const Arguments& a) override;

 private:
  Products& products_;
  const sm90::NewtonSchulzSteps steps_;
  const GroupedKernels kernels_;
};

}  // namespace ananke::cuda
