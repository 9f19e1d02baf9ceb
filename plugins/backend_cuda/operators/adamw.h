#pragma once

#include "runtime/operators/adamw.h"

namespace ananke::cuda {

// Rounded after each operation, as the host backend and torch do. All f32, or all bf16: then what is stored is rounded
// once more.
class CudaAdamW final : public AdamWUpdate {
 public:
  void update(Stream& stream, const Arguments& a) override;
};

}  // namespace ananke::cuda
