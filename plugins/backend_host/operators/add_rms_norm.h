#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/add_rms_norm.h"

namespace ananke::host {

// Keeps 1 / sqrt(mean(h^2) + eps) of each row.
class HostAddRmsNorm final : public AddRmsNorm {
 public:
  explicit HostAddRmsNorm(ThreadPool& pool) : pool_(pool) {}
  std::size_t saved(const Sizes& s) const override;
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
