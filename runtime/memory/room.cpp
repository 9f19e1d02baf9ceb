#include "runtime/memory/room.h"

#include <algorithm>

namespace ananke {
namespace {

std::uint64_t less(std::uint64_t from, std::uint64_t what) { return from - std::min(from, what); }

bool counts(const NumaMemory& numa) { return numa.read() && !numa.cpus().empty() && numa.total() > 0; }

std::uint64_t reclaimable_of(const NumaMemory& numa) {
  const std::uint64_t cache = less(numa.file_pages(), numa.shmem());
  const std::uint64_t listed = numa.active_file() + numa.inactive_file();
  // Kernels that do not list file pages: then what is locked may be in the cache.
  const std::uint64_t droppable = listed > 0 ? std::min(listed, cache) : less(cache, numa.locked());
  return less(droppable, numa.dirty() + numa.writeback());
}

NumaRoom room_of(const NumaMemory& numa, std::uint64_t areas, std::uint64_t reserve) {
  using What = HeldMemory::What;
  NumaRoom room;
  room.id = numa.id();
  room.total = numa.total();
  room.free = numa.free();
  room.reclaimable = reclaimable_of(numa);
  room.kept = numa.watermark() + reserve;
  room.available = less(room.free + room.reclaimable, room.kept);
  const std::uint64_t shared = std::min(numa.shmem(), numa.file_pages());
  const std::uint64_t cache = less(less(numa.file_pages(), shared), room.reclaimable);
  room.held = {
      {What::processes, numa.anonymous()},         {What::shared, shared},     {What::cache, cache},
      {What::huge_pages, numa.huge_pages()},       {What::slab, numa.slab()},  {What::page_tables, numa.page_tables()},
      {What::kernel_stacks, numa.kernel_stacks()}, {What::kernel_areas, areas}};
  std::uint64_t known = room.free + room.reclaimable;
  for (const HeldMemory& held : room.held) known += held.bytes;
  room.unattributed = less(room.total, known);
  room.held.push_back({What::unattributed, room.unattributed});
  std::erase_if(room.held, [](const HeldMemory& held) { return held.bytes == 0; });
  std::ranges::stable_sort(room.held, [](const HeldMemory& a, const HeldMemory& b) { return a.bytes > b.bytes; });
  return room;
}

// `part` of `whole` of `bytes`.
std::uint64_t share(std::uint64_t bytes, std::uint64_t part, std::uint64_t whole) {
  return static_cast<std::uint64_t>(static_cast<double>(bytes) * static_cast<double>(part) /
                                    static_cast<double>(whole));
}

}  // namespace

const NumaRoom* NodeRoom::find(std::uint32_t id) const {
  const auto found = std::ranges::find(numa, id, &NumaRoom::id);
  return found == numa.end() ? nullptr : &*found;
}

NodeRoom room_of(const NodeMemory& node, const RoomOptions& options) {
  NodeRoom room;
  std::uint64_t all = 0;
  for (const NumaMemory& numa : node.numa()) {
    if (counts(numa)) all += numa.total();
    if (numa.read() && numa.cpus().empty()) room.cache_on_devices += less(numa.file_pages(), numa.shmem());
  }
  for (NumaMemory numa : node.numa()) {
    if (!counts(numa)) continue;
    const std::uint64_t areas = share(node.vmalloc() + node.percpu(), numa.total(), all);
    const std::uint64_t to_come = share(less(options.node_bytes, all), numa.total(), all);
    numa.set_total(numa.total() + to_come);
    numa.set_free(numa.free() + to_come);
    room.numa.push_back(room_of(numa, areas, options.reserve));
  }
  std::ranges::sort(room.numa, {}, &NumaRoom::id);
  return room;
}

bool is_leak(const NumaRoom& room) { return room.unattributed > room.total / 8; }

}  // namespace ananke
