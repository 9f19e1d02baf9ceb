// What a backend owns of one device: memory, streams, events and copies. Operators and communicators are apart
// (operators/operator_set.h, comm/communicator.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/device/arena.h"
#include "runtime/device/stream.h"
#include "runtime/tensor/tensor.h"

namespace ananke {

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string description() const = 0;  // "host, 2 threads, OpenBLAS 0.3.21 (SkylakeX)"
  // NUMA node of the host whose memory is next to the device; -1: it has none in particular, or nobody can say.
  virtual int numa_node() const { return -1; }
  virtual Arena& memory() = 0;       // where operators compute
  virtual Arena& host_memory() = 0;  // readable by the host, fast to copy (pinned); may be the same arena
  virtual Stream& stream(Resource resource) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  // An event that knows when it was reached, where the backend measures times; else any.
  virtual std::unique_ptr<Event> make_timer() { return make_event(); }
  // Stream-ordered; memory of either arena on both sides; ranges do not overlap.
  virtual void copy(Stream& stream, void* to, const void* from, std::size_t bytes) = 0;
  virtual void zero(Stream& stream, void* to, std::size_t bytes) = 0;
  // The only way for the host to see a device value: waits for the compute stream, then copies. Counted.
  virtual void read(const TensorView& from, void* to) = 0;
  virtual std::uint64_t reads() const = 0;  // since start
  // Of memory(). Retries since start: requests that found no more to reserve and were made again after what is unused
  // was given back.
  struct MemoryUse {
    std::uint64_t active = 0, reserved = 0, retries = 0;
  };
  virtual MemoryUse memory_use() {
    const std::uint64_t used = memory().used();
    return {used, used, 0};
  }
  // Seconds since start that the compute stream has worked, its waits for other streams left out: all work that a
  // read() has waited for is counted. Nothing where the backend does not measure it.
  virtual std::optional<double> busy_seconds() { return std::nullopt; }
};

}  // namespace ananke
