// What of a node's memory a job can have, and what holds the rest. Pure functions of what was read.
//
//   total = free + reclaimable + held + unattributed
//
// reclaimable: page cache that the kernel drops when asked for memory: on its lists of file pages, and neither dirty
// nor under write-back. Shared memory and locked pages are on other lists and are not in it. unattributed: what remains
// when all that the kernel counts is taken off; drivers and firmware take some, and a leak shows here alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ananke/memory.pb.h"

namespace ananke {

struct RoomOptions {
  std::uint64_t node_bytes = 0;  // memory of the node where its MemTotal grows with use; 0: it does not
  std::uint64_t reserve = 0;     // stays free on every NUMA node
};

struct HeldMemory {
  enum class What {
    processes,
    shared,
    cache,
    huge_pages,
    slab,
    page_tables,
    kernel_stacks,
    kernel_areas,
    unattributed
  };
  What what;
  std::uint64_t bytes;
};

struct NumaRoom {
  std::uint32_t id = 0;
  std::uint64_t total = 0, free = 0, reclaimable = 0;
  std::uint64_t kept = 0;       // by the kernel's watermarks and the reserve
  std::uint64_t available = 0;  // free + reclaimable - kept
  std::uint64_t unattributed = 0;
  std::vector<HeldMemory> held;  // largest first, unattributed memory among it
};

struct NodeRoom {
  std::vector<NumaRoom> numa;  // those with CPUs and memory; a node of none is not known
  // Page cache that lies in the memory of devices (GH200), which drivers before R570 do not drop for the device.
  std::uint64_t cache_on_devices = 0;
  const NumaRoom* find(std::uint32_t id) const;
};

NodeRoom room_of(const NodeMemory& node, const RoomOptions& options);

// More than drivers and firmware usually take: worth a ticket.
bool is_leak(const NumaRoom& room);

}  // namespace ananke
