#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/exchange.h"

namespace ananke::host {

class HostExchange final : public Exchange {
 public:
  explicit HostExchange(ThreadPool& pool) : pool_(pool) {}
  std::size_t workspace(std::int64_t local_experts) const override;
  void plan(Stream& stream, const Plan& a) override;
  void pack(Stream& stream, const Pack& a) override;
  void collect(Stream& stream, const Collect& a) override;
  void expand(Stream& stream, const Expand& a) override;
  void combine(Stream& stream, const Combine& a) override;
  void combine_backward(Stream& stream, const CombineBackward& a) override;
  void expand_backward(Stream& stream, const ExpandBackward& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
