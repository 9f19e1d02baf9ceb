// What a rank map makes of the mesh's axes: how far apart the neighbours on each are.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/topology/rank_map.h"

namespace ananke {

// The ranks that share all coordinates but one axis are its lines. An edge joins neighbours on a line; the last rank
// and the first are neighbours too, where a line has more than two: collectives go round in a ring.
struct AxisEdges {
  std::string axis;  // "expert", "expert_shard", "shard", "replicate"
  int lines = 0;
  int length = 1;                                                   // ranks of a line
  int one_node = 0;                                                 // lines inside of a node
  int one_group = 0;                                                // lines inside of a group (those in one node too)
  long in_node = 0, in_rack = 0, in_group = 0, between_groups = 0;  // edges, each counted where it is shortest
  long edges() const { return in_node + in_rack + in_group + between_groups; }
};

// Every axis, innermost first. expert and expert_shard only where the mesh has an expert axis.
std::vector<AxisEdges> count_edges(const RankMap& map);

// The edges between groups of an axis's lines: pairs of ranks, in the order of the lines.
std::vector<std::pair<int, int>> edges_between_groups(const RankMap& map, const std::string& axis);

// Of every replica: how many groups its nodes are in, and how often its shard axis, as a ring, goes from one to
// another.
struct ReplicaSpread {
  std::vector<std::pair<std::string, int>> groups;  // label and nodes, in the order of ranks; a node that two replicas
                                                    // share counts for both
  int crossings = 0;
};
std::vector<ReplicaSpread> spread_of_replicas(const RankMap& map);

}  // namespace ananke
