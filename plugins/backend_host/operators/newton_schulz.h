#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/newton_schulz.h"

namespace ananke::host {

// Both square products are symmetric: blocks on and below the diagonal are computed, the others mirrored. Matrices too
// small to be shared among threads are computed several at a time.
class HostNewtonSchulz final : public NewtonSchulz {
 public:
  explicit HostNewtonSchulz(ThreadPool& pool) : pool_(pool) {}
  std::size_t workspace(const Sizes& s) const override;
  void run(Stream& stream, const Arguments& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
