#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/elementwise.h"

namespace ananke::host {

class HostElementwise final : public Elementwise {
 public:
  explicit HostElementwise(ThreadPool& pool) : pool_(pool) {}
  void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y) override;
  void square_sum(Stream& stream, const TensorView& x, const TensorView& sum) override;
  void add_in_order(Stream& stream, const TensorView& terms, const TensorView& sum) override;
  void reciprocal(Stream& stream, const TensorView& x, const TensorView& y) override;
  void clip(Stream& stream, const Clip& a) override;
  void hash(Stream& stream, const TensorView& x, const TensorView& hash) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
