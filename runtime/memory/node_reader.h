// Reads what a node has from /proc and /sys below a root, and judges nothing (room.h does). Never throws for what it
// finds: a file that is not there or damaged is a sentence in NodeMemory::trouble, and its numbers are left out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ananke/memory.pb.h"

namespace ananke {

// proc/meminfo, proc/zoneinfo, sys/devices/system/node. Nodes without CPUs are read as well: GPUs show their memory as
// such.
NodeMemory read_node_memory(const std::filesystem::path& root, const std::string& name);

// The three processes that hold most, of those that this user may look at.
void add_memory_holders(const std::filesystem::path& root, NodeMemory& node);

// The NUMA nodes that this process's memory comes from: those with memory whose CPUs it may run on, as far as it may
// use their memory (proc/self/status, the cpuset). Where these have none in common, those whose memory it may use.
// Empty: nothing says, so all.
std::vector<std::uint32_t> read_own_numa_nodes(const std::filesystem::path& root, const NodeMemory& node);

}  // namespace ananke
