// Which rank of the mesh is on which node: a pure function of the nodes' places, the mesh and the ranks of a node. It
// depends neither on the order in which nodes are named nor on how a process manager numbers its tasks.
//
//   rank r is on nodes[r / ranks_per_node], there the worker of local rank r % ranks_per_node
//
// Ranks are numbered with `expert` innermost and `replicate` outermost (comm/mesh.h), so consecutive nodes make up a
// replica, and the expert axis lies inside a node wherever its size divides the ranks of a node.
#pragma once

#include <string>
#include <vector>

#include "runtime/comm/mesh.h"
#include "runtime/topology/places.h"

namespace ananke {

struct RankMap {
  MeshShape mesh;
  int ranks_per_node = 1;
  std::vector<NodePlace> nodes;   // in the order of their ranks
  std::vector<NodePlace> unused;  // by natural_less of their names
  std::vector<std::string> notices;

  const NodePlace& place_of(int rank) const { return nodes[static_cast<std::size_t>(rank / ranks_per_node)]; }
  std::vector<std::string> node_names() const;
  // Of names and their order; the same wherever the map is the same.
  std::string hash() const;
};

// Takes as many of the nodes as the mesh needs: where there are more, those of the fewest groups (largest first, whole
// racks where that is possible). One replica's nodes of a group stay together, so that its shard axis changes groups as
// rarely as can be: groups - 1 times, or as a ring as often as it has groups. With K replicas, K - 1 more at most are
// cut by a boundary between replicas; groups that together fill a replica exactly are found and kept together first.
// Throws Error(config) where there are too few nodes, and where ranks_per_node does not divide the mesh's ranks.
RankMap map_ranks(const std::vector<NodePlace>& nodes, const MeshShape& mesh, int ranks_per_node);

}  // namespace ananke
