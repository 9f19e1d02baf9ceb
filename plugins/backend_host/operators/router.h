#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/router.h"

namespace ananke::host {

// Keeps [T, E] probabilities (softmax) or logits (sigmoid), and the logarithm of the sum of e^logits [T].
class HostRouter final : public Router {
 public:
  explicit HostRouter(ThreadPool& pool) : pool_(pool) {}
  std::size_t saved(const Sizes& s) const override;
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
