#include "plugins/backend_host/host_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace ananke {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t huge_page = std::size_t{2} << 20;
#ifdef ANANKE_SANITIZED
constexpr std::size_t smallest_mapped = std::numeric_limits<std::size_t>::max();
constexpr std::size_t largest = std::size_t{1} << 38;  // they end the process when asked for more than they can
#else
constexpr std::size_t smallest_mapped = huge_page / 2;
constexpr std::size_t largest = std::size_t{1} << 56;
#endif

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

HostMemory::~HostMemory() { drop_kept(); }

void* HostMemory::allocate(std::size_t bytes) {
  if (bytes > largest) refuse(bytes);
  if (bytes < smallest_mapped) {
    const std::size_t rounded = round_up(bytes, alignment);
    void* memory = std::aligned_alloc(alignment, rounded);
    if (!memory) refuse(bytes);
    std::memset(memory, 0, rounded);
    std::lock_guard lock(mutex_);
    in_use_ += bytes;
    return memory;
  }
  const std::size_t rounded = round_up(bytes, huge_page);
  void* memory = take_kept(rounded);
  if (!memory) {
    memory = map(rounded);
    if (!memory) {
      drop_kept();
      memory = map(rounded);
    }
    if (!memory) refuse(bytes);
    std::lock_guard lock(mutex_);
    sizes_.emplace(memory, rounded);
  }
  std::memset(memory, 0, bytes);
  std::lock_guard lock(mutex_);
  in_use_ += bytes;
  return memory;
}

void HostMemory::release(void* memory, std::size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  in_use_ -= bytes;
  if (bytes < smallest_mapped) {
    std::free(memory);
    return;
  }
  if (auto found = sizes_.extract(memory)) kept_.emplace(found.mapped(), memory);
}

std::uint64_t HostMemory::kept() const {
  std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [bytes, memory] : kept_) sum += bytes;
  return sum;
}

// Null when the kernel has no more. mmap aligns to 4 KiB only: map one huge page more, give the ends back.
void* HostMemory::map(std::size_t bytes) {
  const std::size_t mapped = bytes + huge_page;
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t before = round_up(address, huge_page) - address;
  auto* memory = static_cast<std::byte*>(start) + before;
  if (before) munmap(start, before);
  if (huge_page > before) munmap(memory + bytes, huge_page - before);
  madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: without it the memory works as well, only slower
  return memory;
}

// The smallest kept piece that is large enough and not much larger.
void* HostMemory::take_kept(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  auto found = kept_.lower_bound(bytes);
  if (found == kept_.end() || found->first > bytes + bytes / 4) return nullptr;
  auto [size, memory] = *found;
  kept_.erase(found);
  sizes_.emplace(memory, size);
  return memory;
}

void HostMemory::drop_kept() noexcept {
  std::lock_guard lock(mutex_);
  for (const auto& [bytes, memory] : kept_) munmap(memory, bytes);
  kept_.clear();
}

void HostMemory::refuse(std::size_t bytes) const {
  std::lock_guard lock(mutex_);
  fail(ErrorKind::resource,
       "cannot allocate {} of host memory: {} are in use by this rank and the system gives no more; use more ranks per "
       "shard axis, fewer rows per microbatch, or a machine with more memory",
       format_bytes(bytes), format_bytes(in_use_));
}

}  // namespace ananke
