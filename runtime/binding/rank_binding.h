// How each rank is bound to its node once it runs, by what the kernel says, and whether that will do. Reading, sharing
// and judging are apart: the last two are pure.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/binding/node_devices.h"

namespace ananke {

class Binding;  // proto/ananke/faults.proto
class Rendezvous;

struct RankBinding {
  int rank = 0;
  std::string node;    // its name
  std::string cpus;    // that it may run on: "0-71"
  std::string memory;  // NUMA nodes that it may take memory from: "0-3"
  std::string device;  // UUID; empty: the host computes
  int device_numa = -1;
  std::vector<std::string> adapters;  // nearest to the device
  std::vector<std::string> down;      // those of them that are
};

// A device of the rank's backend; empty and -1: it has none in particular.
struct BoundDevice {
  std::string uuid;
  int numa = -1;
};

// Of this process: proc/self/status, and what lies near the device.
RankBinding read_binding(const std::filesystem::path& root, int rank, const std::string& node,
                         const BoundDevice& device);

// Of `allowed`, the CPUs on NUMA node `numa`, cut into as many equal parts as ranks share them: part `index` of
// `ranks`. Fewer CPUs than ranks: all of them. Empty where none is there.
std::vector<std::uint64_t> share_of_cpus(const std::vector<NumberRange>& allowed, const std::vector<NumberRange>& numa,
                                         int index, int ranks);

// All threads of this process that there are now, and those they start, run on these only. Throws Error(resource).
void bind_to_cpus(const std::vector<std::uint64_t>& cpus);

// What is wrong with the ranks of a job by a site's rules, a sentence each, those that the rules do not refuse among
// the warnings. Two ranks of a node with one device are refused by any rules.
struct BindingVerdict {
  std::vector<std::string> refusals, warnings;
};
BindingVerdict judge_binding(const std::vector<RankBinding>& ranks, const Binding& rules);

// "rank 3 on node1: CPUs 216-287, memory of NUMA nodes 0-3, device GPU-... on NUMA node 3, near mlx5_3".
std::string to_string(const RankBinding& binding);

// Small; parse() throws Error(internal) for other text.
std::string pack(const RankBinding& binding);
RankBinding unpack_binding(const std::string& text);

// Everything, in order: binds this rank where the rules say so, reads, exchanges, judges. Returns all ranks' bindings.
// Collective. Throws Error(config) with all that is refused; warnings are logged by the lowest rank.
std::vector<RankBinding> settle_binding(const Binding& rules, const std::filesystem::path& root,
                                        const std::string& node, const BoundDevice& device, Rendezvous& rendezvous);

}  // namespace ananke
