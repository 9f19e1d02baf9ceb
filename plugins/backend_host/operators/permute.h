#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/permute.h"

namespace ananke::host {

class HostPermute final : public Permute {
 public:
  explicit HostPermute(ThreadPool& pool) : pool_(pool) {}
  std::size_t workspace(std::int64_t slots, std::int64_t experts) const override;
  void forward(Stream& stream, const Forward& a, Region workspace) override;
  void backward(Stream& stream, const Backward& a) override;
  void combine_forward(Stream& stream, const CombineForward& a) override;
  void combine_backward(Stream& stream, const CombineBackward& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
