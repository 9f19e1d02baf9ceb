#pragma once

#include "runtime/operators/momentum.h"

namespace ananke::cuda {

// Rounded after each operation, as the host backend and torch do.
class CudaMomentum final : public Momentum {
 public:
  void accumulate(Stream& stream, const Accumulate& a) override;
  void apply(Stream& stream, const Apply& a) override;
};

}  // namespace ananke::cuda
