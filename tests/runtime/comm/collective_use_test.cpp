#include "runtime/comm/collective_use.h"

#include <gtest/gtest.h>

namespace ananke {
namespace {

TEST(CollectiveUse, TheLargestOfEachAxisAndKindIsKept) {
  using Kind = CollectiveKind;
  EXPECT_TRUE(largest_of({}, 1).empty());
  const auto largest = largest_of({{"shard", Kind::all_gather, 5},
                                   {"world", Kind::all_reduce, 0},
                                   {"shard", Kind::all_gather, 7},
                                   {"shard", Kind::reduce_scatter, 1},
                                   {"expert_shard", Kind::all_gather, 9}},
                                  2);
  ASSERT_EQ(largest.size(), 3U);
  EXPECT_EQ(largest[0].axis, "expert_shard");
  EXPECT_EQ(largest[1].bytes, 7U);
  EXPECT_EQ(largest[2].kind, Kind::reduce_scatter);
}

TEST(CollectiveUse, WithoutAnExpertAxisItsShardsAreTheShardAxis) {
  const auto largest =
      largest_of({{"shard", CollectiveKind::all_gather, 5}, {"expert_shard", CollectiveKind::all_gather, 9}}, 1);
  ASSERT_EQ(largest.size(), 1U);
  EXPECT_EQ(largest[0].axis, "shard");
  EXPECT_EQ(largest[0].bytes, 9U);
}

}  // namespace
}  // namespace ananke
