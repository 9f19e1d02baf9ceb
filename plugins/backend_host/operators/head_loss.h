#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/head_loss.h"

namespace ananke::host {

class HostHeadLoss final : public HeadLoss {
 public:
  explicit HostHeadLoss(ThreadPool& pool) : pool_(pool) {}
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void forward_backward(Stream& stream, const ForwardBackward& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
