#include "plugins/backend_cuda/block_memory.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace ananke::cuda {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t page = std::size_t{2} << 20;  // of the driver: a block takes whole ones anyway
constexpr std::size_t largest = std::size_t{1} << 56;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

BlockMemory::BlockMemory(BlockSource& source, std::size_t block_bytes)
    : source_(source), block_bytes_(round_up(std::max<std::size_t>(block_bytes, 1), page)) {}

BlockMemory::~BlockMemory() {
  for (const auto& [block, bytes] : blocks_) source_.unreserve(block);
}

void* BlockMemory::allocate(std::size_t bytes) {
  std::byte* memory = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (bytes <= largest) {
      const std::size_t rounded = round_up(std::max<std::size_t>(bytes, 1), alignment);
      memory = take_free(rounded);
      if (!memory) memory = take_new(rounded);
    }
    if (!memory) {
      const std::string situation = source_.situation();
      fail(ErrorKind::resource,
           "cannot allocate {} of {}: {} are in use by this rank, {} reserved in {} blocks, and there is no more{}{}; "
           "use more ranks per shard axis, fewer rows per microbatch or more recompute",
           format_bytes(bytes), name(), format_bytes(numbers_.used), format_bytes(numbers_.reserved), numbers_.blocks,
           situation.empty() ? "" : " ", situation);
    }
  }
  try {
    source_.clear(memory, bytes);
  } catch (...) {
    release(memory, bytes);
    throw;
  }
  return memory;
}

void BlockMemory::release(void* memory, std::size_t) noexcept {
  std::lock_guard lock(mutex_);
  auto piece = pieces_.find(static_cast<std::byte*>(memory));
  if (piece == pieces_.end() || piece->second.free) return;
  numbers_.used -= piece->second.bytes;
  const auto joinable = [&](Pieces::iterator other) {
    return other->second.free && other->second.block == piece->second.block;
  };
  if (auto next = std::next(piece); next != pieces_.end() && joinable(next)) {
    set_free(next, false);
    piece->second.bytes += next->second.bytes;
    pieces_.erase(next);
  }
  if (piece != pieces_.begin() && joinable(std::prev(piece))) {
    auto before = std::prev(piece);
    set_free(before, false);
    before->second.bytes += piece->second.bytes;
    pieces_.erase(piece);
    piece = before;
  }
  set_free(piece, true);
}

BlockMemory::Numbers BlockMemory::numbers() const {
  std::lock_guard lock(mutex_);
  return numbers_;
}

BlockMemory::Block BlockMemory::block_of(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  std::lock_guard lock(mutex_);
  const auto next = std::find_if(blocks_.rbegin(), blocks_.rend(), [&](const auto& block) {
    return std::less_equal<const std::byte*>()(block.first, at);
  });
  if (next == blocks_.rend() || !std::less<const std::byte*>()(at, next->first + next->second)) return {};
  return {next->first, next->second};
}

// The smallest free piece that is large enough, or null.
std::byte* BlockMemory::take_free(std::size_t bytes) {
  const auto found = free_.lower_bound({bytes, nullptr});
  if (found == free_.end()) return nullptr;
  const auto piece = pieces_.find(found->second);
  set_free(piece, false);
  cut(piece, bytes);
  numbers_.used += bytes;
  return piece->first;
}

// From a new block, or null.
std::byte* BlockMemory::take_new(std::size_t bytes) {
  std::size_t block_bytes = std::max(block_bytes_, round_up(bytes, page));
  void* memory = reserve(block_bytes);
  if (!memory && block_bytes > round_up(bytes, page)) {  // not a whole block any more, but perhaps this piece
    block_bytes = round_up(bytes, page);
    memory = reserve(block_bytes);
  }
  if (!memory) return nullptr;
  auto* block = static_cast<std::byte*>(memory);
  blocks_[block] = block_bytes;
  numbers_.reserved += block_bytes;
  ++numbers_.blocks;
  const auto piece = pieces_.emplace(block, Piece{block_bytes, block, false}).first;
  cut(piece, bytes);
  numbers_.used += bytes;
  return block;
}

void* BlockMemory::reserve(std::size_t bytes) {
  if (void* memory = source_.reserve(bytes)) return memory;
  ++numbers_.retries;
  give_back_unused();
  return source_.reserve(bytes);
}

void BlockMemory::give_back_unused() {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    const auto piece = pieces_.find(block->first);
    if (piece->second.free && piece->second.bytes == block->second) {
      set_free(piece, false);
      pieces_.erase(piece);
      numbers_.reserved -= block->second;
      --numbers_.blocks;
      source_.unreserve(block->first);
      block = blocks_.erase(block);
    } else {
      ++block;
    }
  }
}

void BlockMemory::set_free(Pieces::iterator piece, bool free) {
  piece->second.free = free;
  const std::pair key(piece->second.bytes, piece->first);
  if (free) {
    free_.insert(key);
  } else {
    free_.erase(key);
  }
}

// Shortens a piece that is not free to `bytes`; the rest becomes a free one.
void BlockMemory::cut(Pieces::iterator piece, std::size_t bytes) {
  const std::size_t rest = piece->second.bytes - bytes;
  if (rest == 0) return;
  piece->second.bytes = bytes;
  set_free(pieces_.emplace(piece->first + bytes, Piece{rest, piece->second.block, false}).first, true);
}

}  // namespace ananke::cuda
