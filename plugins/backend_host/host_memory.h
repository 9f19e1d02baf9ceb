// Host memory for arenas. Every piece is aligned to 256 bytes and comes filled with zeros.
//
// First touch of a page is slow (0.3 GB/s was measured on virtual machines, against 21 GB/s for the second), so large
// pieces lie on 2 MiB boundaries, where the kernel can use huge pages, and freed ones are kept for the next allocation
// of about their size. Builds with sanitizers keep nothing, so that they see every use after free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "runtime/device/arena.h"

namespace ananke {

class HostMemory final : public MemorySource {
 public:
  HostMemory() = default;
  ~HostMemory() override;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  void* allocate(std::size_t bytes) override;
  void release(void* memory, std::size_t bytes) noexcept override;
  const char* name() const override { return "host memory"; }
  std::uint64_t kept() const;  // bytes of freed pieces waiting for their next use

 private:
  void* map(std::size_t bytes);
  void* take_kept(std::size_t bytes);
  void drop_kept() noexcept;
  [[noreturn]] void refuse(std::size_t bytes) const;

  mutable std::mutex mutex_;
  std::map<void*, std::size_t> sizes_;      // of large pieces in use
  std::multimap<std::size_t, void*> kept_;  // large pieces not in use, by size
  std::uint64_t in_use_ = 0;
};

}  // namespace ananke
