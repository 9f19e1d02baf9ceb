#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/linear.h"

namespace ananke::host {

class HostLinear final : public Linear {
 public:
  explicit HostLinear(ThreadPool& pool) : pool_(pool) {}
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
