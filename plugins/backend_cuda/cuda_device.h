// One GPU of this process: its arenas, a stream per resource, copies.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "plugins/backend_cuda/block_memory.h"
#include "plugins/backend_cuda/cuda_memory.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/failure.h"
#include "plugins/backend_cuda/operators/device_facts.h"
#include "runtime/device/device.h"

namespace ananke::cuda {

class CudaDevice final : public Device {
 public:
  static constexpr std::size_t landing_bytes = 64 << 10;  // of pinned memory, for small reads
  struct Setup {
    int device = 0;  // ordinal within this process
    std::string uuid;
    std::size_t block_bytes = std::size_t{256} << 20;        // of device memory
    std::size_t pinned_block_bytes = std::size_t{64} << 20;  // of pinned host memory
  };
  // Makes the device's context. Error(config) where a setting of the environment would let kernels wait for each other
  // (environment.h).
  explicit CudaDevice(Setup setup);
  ~CudaDevice() override;

  std::string description() const override;  // "NVIDIA H200 GPU-..., 132 SMs, 139 GiB, CUDA 13.0 (driver 13.0)"
  int numa_node() const override;
  Arena& memory() override { return arena_; }
  Arena& host_memory() override { return pinned_arena_; }
  Stream& stream(Resource resource) override { return *streams_.at(static_cast<std::size_t>(resource)); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(facts_.device, failure_); }
  std::unique_ptr<Event> make_timer() override { return std::make_unique<CudaEvent>(facts_.device, failure_, true); }
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override;
  void zero(Stream& stream, void* to, std::size_t bytes) override;
  void read(const TensorView& from, void* to) override;
  std::uint64_t reads() const override;
  MemoryUse memory_use() override;
  std::optional<double> busy_seconds() override;

  const DeviceFacts& facts() const noexcept { return facts_; }
  const std::string& uuid() const noexcept { return setup_.uuid; }
  const std::shared_ptr<Failure>& failure() const noexcept { return failure_; }
  BlockMemory::Numbers memory_numbers() const { return source_.numbers(); }
  BlockMemory::Block block_of(const void* address) const { return source_.block_of(address); }  // of memory()
  // Operators that see device values by themselves: their reads are counted with the device's. Null: none.
  void count_reads_of(std::function<std::uint64_t()> others);

 private:
  const Setup setup_;
  const DeviceFacts facts_;
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  DeviceBlocks blocks_;
  PinnedBlocks pinned_blocks_;
  BlockMemory source_, pinned_source_;
  Arena arena_, pinned_arena_;
  mutable std::mutex counting_;
  std::function<std::uint64_t()> others_reads_;
  std::mutex reading_;
  Buffer landing_;  // of small reads
  std::atomic<std::uint64_t> reads_ = 0;
  // Last: their work ends before the memory that it uses goes.
  std::array<std::unique_ptr<CudaStream>, resource_count> streams_;
};

}  // namespace ananke::cuda
