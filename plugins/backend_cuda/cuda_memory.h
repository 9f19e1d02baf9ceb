// Where the blocks of the two arenas come from: device memory, and host memory that the device's copy engines reach
// (pinned).
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "plugins/backend_cuda/block_memory.h"

namespace ananke::cuda {

class DeviceBlocks final : public BlockSource {
 public:
  explicit DeviceBlocks(int device);
  ~DeviceBlocks() override;
  void* reserve(std::size_t bytes) override;
  void unreserve(void* block) noexcept override;
  void clear(void* piece, std::size_t bytes) override;
  const char* name() const override { return "device memory"; }
  std::string situation() const override;

 private:
  const int device_;
  cudaStream_t stream_ = nullptr;  // of its own: filling with zeros waits for nobody's work
};

class PinnedBlocks final : public BlockSource {
 public:
  explicit PinnedBlocks(int device) : device_(device) {}
  void* reserve(std::size_t bytes) override;
  void unreserve(void* block) noexcept override;
  void clear(void* piece, std::size_t bytes) override;
  const char* name() const override { return "pinned host memory"; }
  std::string situation() const override;

 private:
  const int device_;
};

}  // namespace ananke::cuda
