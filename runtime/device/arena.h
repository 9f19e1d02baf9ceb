// One owner of a device's memory, with a ledger by purpose: what the memory table at start and in the logs is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace ananke {

// Raw memory of one kind; a backend supplies it.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Aligned to 256, filled with zeros; throws Error(resource) with the numbers.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory, std::size_t bytes) noexcept = 0;
  virtual const char* name() const = 0;  // "host memory", "device memory"
};

class Arena;

// Owns one piece of an arena; gives it back when destroyed. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }
  // The whole buffer, or its part from byte `offset`, as a tensor; Error(internal) when it does not fit.
  TensorView view(DType dtype, Shape shape, std::size_t offset = 0) const;

 private:
  friend class Arena;
  Arena* arena_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::string purpose_;
};

// Thread-safe. Allocation is for start-up: a step allocates nothing. Must outlive its buffers.
class Arena {
 public:
  explicit Arena(MemorySource& source) : source_(source) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `purpose` is what the table shows: "weights", "gradients", "gather slots". 0 bytes give an empty buffer.
  Buffer allocate(std::size_t bytes, const std::string& purpose);
  struct Line {
    std::string purpose;
    std::uint64_t bytes;        // in use now
    std::uint64_t allocations;  // pieces in use now
    std::uint64_t peak = 0;     // most bytes that were in use at once
  };
  std::vector<Line> ledger() const;   // of what is in use, largest first
  std::vector<Line> history() const;  // of every purpose there ever was, by name
  std::uint64_t used() const;
  std::uint64_t peak() const;

 private:
  friend class Buffer;
  void release(Buffer& buffer) noexcept;
  MemorySource& source_;
  mutable std::mutex guard_;
  struct Account {
    std::uint64_t bytes = 0;
    std::uint64_t allocations = 0;
    std::uint64_t peak = 0;
  };
  std::map<std::string, Account> accounts_;
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
};

}  // namespace ananke
