#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/adamw.h"

namespace ananke::host {

class HostAdamW final : public AdamWUpdate {
 public:
  explicit HostAdamW(ThreadPool& pool) : pool_(pool) {}
  void update(Stream& stream, const Arguments& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
