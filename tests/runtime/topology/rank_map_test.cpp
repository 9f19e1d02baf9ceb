#include "runtime/topology/rank_map.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "tests/refusal.h"
#include "tests/runtime/topology/machines.h"

namespace ananke {
namespace {

using Names = std::vector<std::string>;

std::vector<NodePlace> places_of(Names nodes) { return find_places(std::move(nodes), racked_site(), {}).nodes; }

// `sizes[g]` nodes in group g + 1.
Names nodes_in_groups(const std::vector<int>& sizes) {
  Names nodes;
  for (std::size_t group = 0; group < sizes.size(); ++group) {
    for (int i = 0; i < sizes[group]; ++i)
      nodes.push_back(racked_node(static_cast<int>(group) * 5 + 1 + i / 48, i % 48 + 1));
  }
  return nodes;
}

// Independent of the product's own counting: the label of every rank by its node's name, then a walk along the ranks.
int group_of(const RankMap& map, int rank) {
  const std::string& node = map.nodes[static_cast<std::size_t>(rank / map.ranks_per_node)].node;
  return (std::stoi(node.substr(2, 3)) - 1) / 5;
}
// As a ring: from the last rank of the replica it goes back to the first.
int crossings(const RankMap& map, int replica) {
  int count = 0;
  const int first = replica * map.mesh.shard;
  for (int i = 0; i < map.mesh.shard; ++i) {
    count += group_of(map, first + i) != group_of(map, first + (i + 1) % map.mesh.shard) ? 1 : 0;
  }
  return count;
}
int all_crossings(const RankMap& map) {
  int count = 0;
  for (int replica = 0; replica < map.mesh.replicate; ++replica) count += crossings(map, replica);
  return count;
}
int groups_in(const Names& nodes) {
  std::set<int> groups;
  for (const std::string& node : nodes) groups.insert((std::stoi(node.substr(2, 3)) - 1) / 5);
  return static_cast<int>(groups.size());
}
// A ring over nodes of G > 1 groups enters every group at least once.
int least_of_ring(int groups) { return groups > 1 ? groups : 0; }

void expect_expert_axis_in_nodes(const RankMap& map) {
  for (int rank = 0; rank < map.mesh.ranks(); ++rank) {
    for (const int peer : expert_group(map.mesh, rank)) {
      ASSERT_EQ(rank / map.ranks_per_node, peer / map.ranks_per_node) << "ranks " << rank << " and " << peer;
    }
  }
}

TEST(RankMap, SaysWhatDoesNotFit) {
  EXPECT_ERROR(map_ranks(places_of(nodes_in_groups({2})), {1, 12, 1}, 4), ErrorKind::config,
               "12 ranks (replicate 1 x shard 12) at 4 a node need 3 nodes, and there are 2");
  EXPECT_ERROR(map_ranks(places_of(nodes_in_groups({4})), {1, 10, 1}, 4), ErrorKind::config,
               "10 ranks (replicate 1 x shard 10) are no multiple of the 4 that a node takes");
}

TEST(RankMap, TellsWhereTheExpertAxisLeavesNodes) {
  const auto notices = [](const MeshShape& mesh, int ranks_per_node) {
    const auto places = places_of(nodes_in_groups({mesh.ranks() / ranks_per_node}));
    return map_ranks(places, mesh, ranks_per_node).notices;
  };
  EXPECT_TRUE(notices({1, 16, 4}, 4).empty());
  EXPECT_TRUE(notices({1, 16, 2}, 4).empty());
  ASSERT_EQ(notices({1, 16, 8}, 4).size(), 1u);
  EXPECT_NAMES(notices({1, 16, 8}, 4)[0], "expert axis of 8 ranks does not lie inside of nodes of 4 ranks");
  EXPECT_NAMES(notices({1, 12, 3}, 4)[0], "expert axis of 3 ranks");
  EXPECT_NAMES(notices({2, 6, 1}, 4)[0], "replicas of 6 ranks share nodes of 4");
}

// The task's own figures: 96 nodes drawn at random from 25 groups with gaps, four ranks a node, experts over four.
TEST(RankMap, OfOneReplicaCrossesGroupsAsRarelyAsCanBe) {
  for (std::uint64_t draw = 0; draw < 100; ++draw) {
    Chance chance(draw + 1);
    Names nodes = drawn_nodes(chance, 96);
    const RankMap map = map_ranks(places_of(nodes), {1, 384, 4}, 4);
    expect_expert_axis_in_nodes(map);
    EXPECT_EQ(crossings(map, 0), least_of_ring(groups_in(nodes))) << "draw " << draw;
    for (int shuffle = 0; shuffle < 3; ++shuffle) {
      chance.shuffle(nodes);
      const RankMap again = map_ranks(places_of(nodes), {1, 384, 4}, 4);
      ASSERT_EQ(again.node_names(), map.node_names()) << "draw " << draw;
      ASSERT_EQ(again.hash(), map.hash());
    }
    std::vector<NodePlace> places = places_of(nodes);
    chance.shuffle(places);
    ASSERT_EQ(map_ranks(places, {1, 384, 4}, 4).nodes, map.nodes);
  }
}

TEST(RankMap, OfFourReplicasIsWithinThreeOfTheLowerBound) {
  for (std::uint64_t draw = 0; draw < 100; ++draw) {
    Chance chance(1000 + draw);
    const Names nodes = drawn_nodes(chance, 4 * 96);
    std::map<int, int> sizes;
    for (const std::string& node : nodes) ++sizes[(std::stoi(node.substr(2, 3)) - 1) / 5];
    for (const auto& [group, size] : sizes) ASSERT_LT(size, 96) << "then no replica fits into a group";
    const RankMap map = map_ranks(places_of(nodes), {4, 384, 4}, 4);
    expect_expert_axis_in_nodes(map);
    // Every replica is in several groups, so each of its groups is entered once; every group is in some replica.
    const int least = static_cast<int>(sizes.size());
    EXPECT_GE(all_crossings(map), least);
    EXPECT_LE(all_crossings(map), least + 3) << "draw " << draw;
  }
}

// All ways to deal nodes of some groups to replicas, by trying them: the fewest crossings that there can be.
int fewest(std::vector<int> left, int replicas, int nodes) {
  if (replicas == 0) return 0;
  int best = 1 << 20;
  std::vector<int> part(left.size());
  const auto deal = [&](const auto& self, std::size_t group, int need) -> void {
    if (group == left.size()) {
      if (need > 0) return;
      const int groups = static_cast<int>(std::ranges::count_if(part, [](int count) { return count > 0; }));
      std::vector<int> rest = left;
      for (std::size_t i = 0; i < rest.size(); ++i) rest[i] -= part[i];
      best = std::min(best, least_of_ring(groups) + fewest(rest, replicas - 1, nodes));
      return;
    }
    for (part[group] = 0; part[group] <= std::min(left[group], need); ++part[group]) {
      self(self, group + 1, need - part[group]);
    }
    part[group] = 0;
  };
  deal(deal, 0, nodes);
  return best;
}

TEST(RankMap, OfSmallAllocationsIsAsGoodAsAllTried) {
  for (const auto& [sizes, replicas] : std::vector<std::pair<std::vector<int>, int>>{{{4}, 2},
                                                                                     {{2, 2, 1, 1}, 2},
                                                                                     {{2, 2}, 2},
                                                                                     {{1, 3}, 2},
                                                                                     {{1, 2, 3}, 2},
                                                                                     {{3, 3}, 2},
                                                                                     {{2, 1, 2, 1}, 2},
                                                                                     {{3, 1, 2, 2, 1}, 3},
                                                                                     {{5, 1}, 3},
                                                                                     {{7, 2}, 3},
                                                                                     {{1, 1, 1, 1, 1, 1}, 2},
                                                                                     {{2, 3, 1, 2}, 4},
                                                                                     {{1, 4, 1}, 3}}) {
    const int nodes = std::accumulate(sizes.begin(), sizes.end(), 0);
    ASSERT_EQ(nodes % replicas, 0);
    const RankMap map = map_ranks(places_of(nodes_in_groups(sizes)), {replicas, nodes / replicas * 2, 2}, 2);
    EXPECT_EQ(all_crossings(map), fewest(sizes, replicas, nodes / replicas))
        << testing::PrintToString(sizes) << " for " << replicas << " replicas";
  }
}

TEST(RankMap, TakesTheNodesOfTheFewestGroups) {
  const RankMap map = map_ranks(places_of(nodes_in_groups({3, 50, 20})), {1, 60 * 4, 4}, 4);
  EXPECT_EQ(map.nodes.size(), 60u);
  EXPECT_EQ(map.unused.size(), 13u);
  EXPECT_EQ(groups_in(map.node_names()), 2);
  EXPECT_EQ(map.unused[0].node, racked_node(1, 1)) << "a small group is left out";
  EXPECT_EQ(map.unused[3].node, racked_node(11, 11)) << "and the end of the last that is needed";
}

TEST(RankMap, PutsRacksOfAGroupTogether) {
  const RankMap map =
      map_ranks(places_of({"n-003-01", "n-001-02", "n-002-05", "n-001-10", "n-003-48", "n-002-04"}), {1, 24, 4}, 4);
  EXPECT_EQ(map.node_names(), (Names{"n-001-02", "n-001-10", "n-002-04", "n-002-05", "n-003-01", "n-003-48"}));
  EXPECT_EQ(map.place_of(23).node, "n-003-48");
  EXPECT_EQ(map.place_of(4).node, "n-001-10");
}

TEST(RankMap, OfNodesThatNothingIsKnownOfGoesByTheirNames) {
  Site site;
  site.set_name("plain");
  const RankMap map = map_ranks(find_places({"b10", "b9", "b1", "b2"}, site, {}).nodes, {1, 3, 1}, 1);
  EXPECT_EQ(map.node_names(), (Names{"b1", "b2", "b9"}));
  EXPECT_EQ(map.unused[0].node, "b10");
}

}  // namespace
}  // namespace ananke
