#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/momentum.h"

namespace ananke::host {

class HostMomentum final : public Momentum {
 public:
  explicit HostMomentum(ThreadPool& pool) : pool_(pool) {}
  void accumulate(Stream& stream, const Accumulate& a) override;
  void apply(Stream& stream, const Apply& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
