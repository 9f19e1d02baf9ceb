#pragma once

#include "runtime/operators/adamw.h"

namespace ananke::cuda {

// Rounded after each operation, as the host backend and torch do.
class CudaAdamW final : public AdamWUpdate {
 public:
  void update(Stream& stream, const Arguments& a) override;
};

}  // namespace ananke::cuda
