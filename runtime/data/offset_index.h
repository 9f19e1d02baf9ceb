// Where documents begin in a token store: read a chunk at a time when asked for, kept in bounded memory, so that an
// index may be larger than memory. While it fits the bound, every chunk is read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace ananke {

class OffsetIndex {
 public:
  static constexpr std::uint64_t chunk_documents = 8192;
  // Fills `out` with the offsets from number `first` on; throws what the caller of range() shall see.
  using Load = std::function<void(std::uint64_t first, std::span<std::uint64_t> out)>;

  // `offsets`: documents + 1. At most `memory` bytes of them are kept, but never less than one chunk.
  OffsetIndex(std::uint64_t offsets, std::size_t memory, Load load);
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  Range range(std::uint64_t document) const;  // of any thread
  std::size_t resident_chunks() const;

 private:
  using Chunk = std::vector<std::uint64_t>;  // one more than its documents: the last one's end
  const Chunk& chunk(std::uint64_t number) const;

  std::uint64_t offsets_;
  std::size_t most_chunks_;
  Load load_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Chunk>> chunks_;
  mutable std::deque<std::uint64_t> resident_;  // in the order they came: under shuffled access as good as any other
};

}  // namespace ananke
