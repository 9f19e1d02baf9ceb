// What a job exchanges at most, known before anything starts: what backends plan their landing buffers by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ananke {

enum class CollectiveKind { all_gather, reduce_scatter, all_reduce, broadcast, all_to_all };

// The largest call of one kind on one axis's communicator.
struct CollectiveUse {
  std::string axis;  // as communicators are called: "world", "shard", "replicate", "expert_shard", "expert", "node"
  CollectiveKind kind = CollectiveKind::all_reduce;
  // Of the tensor that a rank sends: its own part for all_gather, everything for the others.
  std::uint64_t bytes = 0;
};

// The largest of each axis and kind, in order. Where the expert axis has one rank, expert_shard is the shard axis.
std::vector<CollectiveUse> largest_of(std::vector<CollectiveUse> uses, int expert_axis);

}  // namespace ananke
