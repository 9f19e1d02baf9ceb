// Where rows of groups begin, read by the host: products are put on the stream one by one and must know their sizes.
// Each read waits for the stream; they are counted, for Device::reads().
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
  // i32 [n], once everything before it on the stream is done. Valid until the next read; by one host thread at a time.
  std::span<const std::int32_t> read(Stream& stream, const TensorView& offsets);
  std::uint64_t reads() const noexcept { return reads_; }

 private:
  Buffer pinned_;
  std::atomic<std::uint64_t> reads_ = 0;
};

}  // namespace ananke::cuda
