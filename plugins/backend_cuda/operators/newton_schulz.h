#pragma once

#include "plugins/backend_cuda/operators/products.h"
#include "runtime/operators/newton_schulz.h"

namespace ananke::cuda {

// Several matrices at a time by batched products.
class CudaNewtonSchulz final : public NewtonSchulz {
 public:
  explicit CudaNewtonSchulz(Products& products) : products_(products) {}
  std::size_t workspace(const Sizes& s) const override;
  void run(Stream& stream, const Arguments& a) override;

 private:
  Products& products_;
};

}  // namespace ananke::cuda
