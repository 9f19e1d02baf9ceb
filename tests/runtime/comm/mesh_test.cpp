#include "runtime/comm/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ananke/mesh.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

TEST(Mesh, RefusesARankOutsideOfIt) {
  EXPECT_THROW(coordinates({2, 3}, 6), Error);
  EXPECT_THROW(coordinates({2, 3}, -1), Error);
  EXPECT_THROW(shard_group({2, 3}, 6), Error);
  EXPECT_THROW(replicate_group({2, 3}, 6), Error);
  EXPECT_THROW(expert_group({2, 4, 2}, 8), Error);
  EXPECT_THROW(expert_shard_group({2, 4, 2}, -1), Error);
  EXPECT_THROW(coordinates({1, 4, 3}, 0), Error) << "an expert axis that does not divide shard";
}

TEST(Mesh, ReplicateIsOutermost) {
  EXPECT_EQ(shard_group({2, 3}, 4), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(replicate_group({2, 3}, 4), (std::vector<int>{1, 4}));
  EXPECT_EQ(to_string(MeshShape{2, 3}), "replicate 2 x shard 3");
}

TEST(Mesh, ExpertIsInnermost) {
  const MeshShape mesh{2, 6, 2};
  EXPECT_EQ(mesh.expert_shard(), 3);
  EXPECT_EQ(mesh.ranks(), 12);
  EXPECT_EQ(expert_group(mesh, 9), (std::vector<int>{8, 9}));
  EXPECT_EQ(expert_shard_group(mesh, 9), (std::vector<int>{7, 9, 11}));
  const MeshCoordinates at = coordinates(mesh, 9);
  EXPECT_EQ(at.replicate, 1);
  EXPECT_EQ(at.shard, 3);
  EXPECT_EQ(at.expert_shard, 1);
  EXPECT_EQ(at.expert, 1);
  EXPECT_EQ(to_string(mesh), "replicate 2 x shard 6 (expert_shard 3 x expert 2)");
}

TEST(Mesh, NodeGroupIsTheShardGroupsPartOfTheNode) {
  const MeshShape mesh{2, 4};
  const std::vector<std::string> blocks = {"a", "a", "b", "b", "b", "b", "c", "c"};
  EXPECT_EQ(node_group(mesh, 1, blocks), (std::vector<int>{0, 1}));
  EXPECT_EQ(node_group(mesh, 3, blocks), (std::vector<int>{2, 3})) << "the other replica's ranks are not of it";
  const std::vector<std::string> cyclic = {"a", "b", "a", "b", "a", "b", "a", "b"};
  EXPECT_EQ(node_group(mesh, 5, cyclic), (std::vector<int>{5, 7}));
  const std::vector<std::string> unequal = {"a", "b", "b", "b", "c", "c", "c", "c"};
  EXPECT_EQ(node_group(mesh, 2, unequal), (std::vector<int>{2})) << "nodes of 1 and 3 ranks";
  EXPECT_EQ(node_group(mesh, 6, unequal), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_THROW(node_group(mesh, 0, {"a"}), Error);
}

TEST(Mesh, IsReadFromAResolvedJob) {
  Mesh mesh;
  EXPECT_EQ(mesh_of(mesh).expert, 1);
  mesh.set_replicate(2);
  mesh.set_shard(6);
  mesh.set_expert(3);
  EXPECT_EQ(mesh_of(mesh), (MeshShape{2, 6, 3}));
}

TEST(Mesh, GroupsContainTheRankAtItsCoordinateAndAreTheSameForAllMembers) {
  for (const MeshShape mesh : {MeshShape{1, 1}, MeshShape{1, 4}, MeshShape{4, 1}, MeshShape{3, 5}, MeshShape{1, 4, 4},
                               MeshShape{2, 4, 2}, MeshShape{3, 6, 3}}) {
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const auto shard = shard_group(mesh, rank);
      const auto replicate = replicate_group(mesh, rank);
      ASSERT_EQ(static_cast<int>(shard.size()), mesh.shard);
      ASSERT_EQ(static_cast<int>(replicate.size()), mesh.replicate);
      EXPECT_EQ(shard[coordinates(mesh, rank).shard], rank);
      EXPECT_EQ(replicate[coordinates(mesh, rank).replicate], rank);
      for (const int peer : shard) EXPECT_EQ(shard_group(mesh, peer), shard);
      for (const int peer : replicate) EXPECT_EQ(replicate_group(mesh, peer), replicate);
      const auto expert = expert_group(mesh, rank), expert_shard = expert_shard_group(mesh, rank);
      ASSERT_EQ(static_cast<int>(expert.size()), mesh.expert);
      ASSERT_EQ(static_cast<int>(expert_shard.size()), mesh.expert_shard());
      EXPECT_EQ(expert[coordinates(mesh, rank).expert], rank);
      EXPECT_EQ(expert_shard[coordinates(mesh, rank).expert_shard], rank);
      for (const int peer : expert) EXPECT_EQ(expert_group(mesh, peer), expert);
      for (const int peer : expert_shard) EXPECT_EQ(expert_shard_group(mesh, peer), expert_shard);
    }
  }
}

}  // namespace
}  // namespace ananke
