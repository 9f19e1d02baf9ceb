#pragma once

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/embedding.h"

namespace ananke::host {

class HostEmbedding final : public Embedding {
 public:
  explicit HostEmbedding(ThreadPool& pool) : pool_(pool) {}
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  ThreadPool& pool_;
};

}  // namespace ananke::host
