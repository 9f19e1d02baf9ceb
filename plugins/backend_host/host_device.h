// The host as a device: one arena, one stream per resource, copies by memcpy on the stream's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "plugins/backend_host/host_memory.h"
#include "plugins/backend_host/host_stream.h"
#include "runtime/device/device.h"
#include "runtime/device/numa.h"

namespace ananke {

class HostDevice final : public Device {
 public:
  explicit HostDevice(std::string description) : description_(std::move(description)), arena_(source_) {}

  std::string description() const override { return description_; }
  int numa_node() const override { return numa_node_of_process(); }
  Arena& memory() override { return arena_; }
  Arena& host_memory() override { return arena_; }
  Stream& stream(Resource resource) override;  // made on first use; any thread
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }
  std::unique_ptr<Event> make_timer() override { return std::make_unique<HostEvent>(true); }
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override;
  void zero(Stream& stream, void* to, std::size_t bytes) override;
  void read(const TensorView& from, void* to) override;
  std::uint64_t reads() const override { return reads_.load(std::memory_order_relaxed); }
  std::optional<double> busy_seconds() override { return HostStream::of(stream(Resource::compute)).busy_seconds(); }

 private:
  const std::string description_;
  HostMemory source_;
  Arena arena_;
  std::mutex mutex_;
  std::atomic<std::uint64_t> reads_ = 0;
  // Last: their threads end before the memory they work on goes.
  std::array<std::unique_ptr<HostStream>, resource_count> streams_;
};

}  // namespace ananke
