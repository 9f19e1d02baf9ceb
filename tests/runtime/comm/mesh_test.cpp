#include "runtime/comm/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace ananke {
namespace {

TEST(Mesh, RefusesARankOutsideOfIt) {
  EXPECT_THROW(coordinates({2, 3}, 6), Error);
  EXPECT_THROW(coordinates({2, 3}, -1), Error);
  EXPECT_THROW(shard_group({2, 3}, 6), Error);
  EXPECT_THROW(replicate_group({2, 3}, 6), Error);
}

TEST(Mesh, ReplicateIsOutermost) {
  EXPECT_EQ(shard_group({2, 3}, 4), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(replicate_group({2, 3}, 4), (std::vector<int>{1, 4}));
  EXPECT_EQ(to_string(MeshShape{2, 3}), "replicate 2 x shard 3");
}

TEST(Mesh, GroupsContainTheRankAtItsCoordinateAndAreTheSameForAllMembers) {
  for (const MeshShape mesh : {MeshShape{1, 1}, MeshShape{1, 4}, MeshShape{4, 1}, MeshShape{3, 5}}) {
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const auto shard = shard_group(mesh, rank);
      const auto replicate = replicate_group(mesh, rank);
      ASSERT_EQ(static_cast<int>(shard.size()), mesh.shard);
      ASSERT_EQ(static_cast<int>(replicate.size()), mesh.replicate);
      EXPECT_EQ(shard[coordinates(mesh, rank).shard], rank);
      EXPECT_EQ(replicate[coordinates(mesh, rank).replicate], rank);
      for (const int peer : shard) EXPECT_EQ(shard_group(mesh, peer), shard);
      for (const int peer : replicate) EXPECT_EQ(replicate_group(mesh, peer), replicate);
    }
  }
}

}  // namespace
}  // namespace ananke
