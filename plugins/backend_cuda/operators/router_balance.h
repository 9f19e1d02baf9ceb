#pragma once

#include "runtime/operators/router_balance.h"

namespace ananke::cuda {

class CudaRouterBalance final : public RouterBalance {
 public:
  void collect(Stream& stream, const Collect& a) override;
  void factors(Stream& stream, const Factors& a) override;
  void load(Stream& stream, const Load& a) override;
  void update_bias(Stream& stream, const UpdateBias& a) override;
  void summarise(Stream& stream, const Summarise& a) override;
};

}  // namespace ananke::cuda
