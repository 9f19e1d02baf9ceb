#include "runtime/topology/edges.h"

#include <gtest/gtest.h>

#include "tests/runtime/topology/machines.h"

namespace ananke {
namespace {

RankMap map_of(const std::vector<std::string>& nodes, const MeshShape& mesh, int ranks_per_node) {
  return map_ranks(find_places(nodes, racked_site(), {}).nodes, mesh, ranks_per_node);
}
std::string text_of(const AxisEdges& axis) {
  return fmt::format("{} {}x{} node {} group {} | {} {} {} {}", axis.axis, axis.lines, axis.length, axis.one_node,
                     axis.one_group, axis.in_node, axis.in_rack, axis.in_group, axis.between_groups);
}

// Group 1: two nodes of rack 1, one of rack 2; group 2: one of rack 6. Two ranks each; experts over both.
TEST(Edges, AreCountedWhereTheyAreShortest) {
  const RankMap map = map_of({"n-001-01", "n-001-02", "n-002-01", "n-006-01"}, {2, 4, 2}, 2);
  const std::vector<AxisEdges> edges = count_edges(map);
  ASSERT_EQ(edges.size(), 4u);
  EXPECT_EQ(text_of(edges[0]), "expert 4x2 node 4 group 4 | 4 0 0 0");
  EXPECT_EQ(text_of(edges[1]), "expert_shard 4x2 node 0 group 2 | 0 2 0 2");
  // 0 1 | 2 3: two edges inside of nodes, and two between both nodes, as a ring; likewise 4 5 | 6 7.
  EXPECT_EQ(text_of(edges[2]), "shard 2x4 node 0 group 1 | 4 2 0 2");
  EXPECT_EQ(text_of(edges[3]), "replicate 4x2 node 0 group 2 | 0 0 2 2");
  EXPECT_EQ(edges[2].edges(), 8);
  EXPECT_EQ(edges_between_groups(map, "shard"), (std::vector<std::pair<int, int>>{{5, 6}, {7, 4}}));
  EXPECT_EQ(edges_between_groups(map, "expert"), (std::vector<std::pair<int, int>>()));
}

TEST(Edges, OfAMeshWithoutExpertsAreTwoAxes) {
  const std::vector<AxisEdges> edges = count_edges(map_of({"n-001-01"}, {1, 4, 1}, 4));
  ASSERT_EQ(edges.size(), 2u);
  EXPECT_EQ(text_of(edges[0]), "shard 1x4 node 1 group 1 | 4 0 0 0");
  EXPECT_EQ(text_of(edges[1]), "replicate 4x1 node 4 group 4 | 0 0 0 0");
}

TEST(Edges, BetweenGroupsAreThoseOfTheReplicas) {
  Chance chance(7);
  const RankMap map = map_of(drawn_nodes(chance, 384), {4, 384, 4}, 4);
  const std::vector<ReplicaSpread> spreads = spread_of_replicas(map);
  ASSERT_EQ(spreads.size(), 4u);
  int nodes = 0, crossings = 0;
  for (const ReplicaSpread& spread : spreads) {
    for (const auto& [group, count] : spread.groups) nodes += count;
    EXPECT_EQ(spread.crossings, static_cast<int>(spread.groups.size())) << "one for each group";
    crossings += spread.crossings;
  }
  EXPECT_EQ(nodes, 384);
  const std::vector<AxisEdges> edges = count_edges(map);
  EXPECT_EQ(edges[2].axis, "shard");
  EXPECT_EQ(edges[2].between_groups, crossings);
  EXPECT_EQ(edges[0].one_node, edges[0].lines);
  for (const AxisEdges& axis : edges) {
    EXPECT_EQ(axis.lines * axis.length, 4 * 384) << axis.axis;
    EXPECT_EQ(static_cast<long>(edges_between_groups(map, axis.axis).size()), axis.between_groups) << axis.axis;
  }
}

TEST(Edges, OfNodesWithoutRacksAreInTheirGroup) {
  Site site;
  site.set_name("plain");
  const RankMap map = map_ranks(find_places({"a", "b"}, site, {}).nodes, {1, 2, 1}, 1);
  EXPECT_EQ(text_of(count_edges(map)[0]), "shard 1x2 node 0 group 1 | 0 0 1 0");
}

}  // namespace
}  // namespace ananke
