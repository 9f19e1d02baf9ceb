#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/wire.h"

namespace ananke::host {

class HostWire final : public Wire {
 public:
  explicit HostWire(ThreadPool& pool) : pool_(pool) {}
  void to_bf16(Stream& stream, const ToBf16& a) override;
  void from_bf16(Stream& stream, const TensorView& x, const TensorView& y) override;
  void landing_sum(Stream& stream, const LandingSum& a) override;
  void quantise(Stream& stream, const TensorView& pieces, const TensorView& values, const TensorView& bytes) override;
  void dequantise(Stream& stream, const TensorView& pieces, const TensorView& bytes, const TensorView& values) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
