// Where rows of groups begin, as the host needs it: products are put on the stream one by one and must know their
// sizes. Where the caller does not know them they are read; each read waits for the stream, and is counted for
// Device::reads().
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "runtime/device/arena.h"
#include "runtime/device/stream.h"

namespace ananke::cuda {

class OffsetReader {
 public:
  explicit OffsetReader(Arena& pinned);
  // `known`, or where it is empty i32 [n] from the device, once everything before it on the stream is done. Valid until
  // the next call; by one host thread at a time.
  std::span<const std::int32_t> get(Stream& stream, const TensorView& offsets, std::span<const std::int64_t> known);
  std::uint64_t reads() const noexcept { return reads_; }

 private:
  Buffer pinned_;
  std::atomic<std::uint64_t> reads_ = 0;
};

}  // namespace ananke::cuda
