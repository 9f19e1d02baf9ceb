// Memory cut out of large blocks: reserving from the CUDA driver is slow and waits for the device, so pieces of an
// arena come from blocks that stay until the source ends. Knows nothing of CUDA.
//
// Every piece is aligned to 256 bytes and comes filled with zeros. A freed piece is joined with its free neighbours and
// goes to the next request that fits best; whoever frees it makes sure that no stream still uses it. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "runtime/device/arena.h"

namespace ananke::cuda {

// Where blocks come from.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  virtual void* reserve(std::size_t bytes) = 0;  // aligned to 256; null when there is no more
  virtual void unreserve(void* block) noexcept = 0;
  virtual void clear(void* piece, std::size_t bytes) = 0;  // filled with zeros when it returns
  virtual const char* name() const = 0;                    // "device memory"
  // What is known about the memory that is not ours, for the message of a refusal; may be empty.
  virtual std::string situation() const = 0;
};

class BlockMemory final : public MemorySource {
 public:
  // Requests of up to `block_bytes` share blocks of that size, larger ones get one of their own.
  BlockMemory(BlockSource& source, std::size_t block_bytes);
  ~BlockMemory() override;
  BlockMemory(const BlockMemory&) = delete;
  BlockMemory& operator=(const BlockMemory&) = delete;

  // Error(resource) with what is asked, used and reserved. Where the source has no more, blocks without a piece in use
  // are given back and it is asked again, once: a retry.
  void* allocate(std::size_t bytes) override;
  void release(void* memory, std::size_t bytes) noexcept override;
  const char* name() const override { return source_.name(); }

  struct Numbers {
    std::uint64_t reserved = 0;  // bytes of all blocks
    std::uint64_t used = 0;      // of the pieces in use, rounded as they are cut
    std::uint64_t blocks = 0;
    std::uint64_t retries = 0;
  };
  Numbers numbers() const;
  struct Block {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
  };
  // The one that `address` lies in; empty: none does.
  Block block_of(const void* address) const;

 private:
  struct Piece {
    std::size_t bytes = 0;
    std::byte* block = nullptr;  // begin of the block that it lies in
    bool free = false;
  };
  using Pieces = std::map<std::byte*, Piece>;  // all blocks, by address, without gaps inside a block

  std::byte* take_free(std::size_t bytes);
  std::byte* take_new(std::size_t bytes);
  void* reserve(std::size_t bytes);
  void give_back_unused();
  void set_free(Pieces::iterator piece, bool free);
  void cut(Pieces::iterator piece, std::size_t bytes);

  BlockSource& source_;
  const std::size_t block_bytes_;
  mutable std::mutex mutex_;
  Pieces pieces_;
  std::set<std::pair<std::size_t, std::byte*>> free_;  // by size, then address
  std::map<std::byte*, std::size_t> blocks_;
  Numbers numbers_;
};

}  // namespace ananke::cuda
