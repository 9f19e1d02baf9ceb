#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/attention.h"

namespace ananke::host {

// Scores of a block of queries against all keys before them stand in scratch memory (queries_per_block x longest per
// thread), made and used by matrix products. Keeps the norms' inverse r.m.s. and the log-sum-exp of each query's
// scores.
class HostAttention final : public Attention {
 public:
  explicit HostAttention(ThreadPool& pool) : pool_(pool) {}
  std::size_t saved(const Sizes& s) const override;
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
