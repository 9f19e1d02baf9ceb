#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/grouped_mlp.h"

namespace ananke::host {

// Keeps the outputs of gate and up, [R, F] each.
class HostGroupedMlp final : public GroupedMlp {
 public:
  explicit HostGroupedMlp(ThreadPool& pool) : pool_(pool) {}
  std::size_t saved(const Sizes& s) const override;
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
