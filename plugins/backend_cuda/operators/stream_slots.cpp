#include "plugins/backend_cuda/operators/stream_slots.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ananke::cuda {

StreamSlots::StreamSlots(Arena& memory, const std::string& purpose, int streams, std::size_t bytes)
    : purpose_(purpose),
      streams_(static_cast<std::size_t>(streams)),
      bytes_(bytes),
      buffer_(memory.allocate(streams_ * bytes_, purpose)) {
  ANANKE_CHECK(bytes % 256 == 0, "{}: pieces of {} bytes", purpose, bytes);
}

Region StreamSlots::of(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  const auto found = std::find(seen_.begin(), seen_.end(), stream);
  const auto index = static_cast<std::size_t>(found - seen_.begin());
  if (found == seen_.end()) {
    ANANKE_CHECK(index < streams_, "{}: called on more than {} streams", purpose_, streams_);
    seen_.push_back(stream);
  }
  return {static_cast<std::byte*>(buffer_.data()) + index * bytes_, bytes_};
}

}  // namespace ananke::cuda
