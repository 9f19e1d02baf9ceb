#include "plugins/backend_host/memory_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "runtime/base/process.h"

namespace ananke::host {
namespace {

using Lines = std::map<std::string, std::uint64_t>;

Lines planned(const std::vector<CollectiveUse>& uses, int ranks, Way way) {
  Lines lines;
  for (const PlanLine& line : collective_memory(uses, {ranks, way})) lines[line.purpose] += line.bytes;
  return lines;
}

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

TEST(HostMemoryPlan, NothingToExchangeNeedsNothing) {
  EXPECT_TRUE(planned({}, 4, Way::gloo).empty());
  EXPECT_TRUE(planned({{"shard", CollectiveKind::all_reduce, mib}}, 1, Way::gloo).empty());
}

TEST(HostMemoryPlan, AReductionOfBlocksHoldsOneBlockOfEveryRank) {
  const std::vector<CollectiveUse> uses = {{"shard", CollectiveKind::all_reduce, 8 * mib}};
  EXPECT_EQ(planned(uses, 4, Way::threads), (Lines{{"communicator scratch", 2 * mib}}));
  EXPECT_EQ(planned(uses, 4, Way::gloo),
            (Lines{{"communicator scratch", 2 * mib}, {"communicator landing", 6 * mib + 3 * 256}}));
  EXPECT_EQ(planned(uses, 4, Way::shared_memory),
            (Lines{{"communicator scratch", 2 * mib}, {"shared outboxes", 12 * mib}}));
}

TEST(HostMemoryPlan, OfTwoRanksEachHasEverything) {
  const std::vector<CollectiveUse> uses = {{"shard", CollectiveKind::all_reduce, 8 * mib}};
  EXPECT_EQ(planned(uses, 2, Way::gloo),
            (Lines{{"communicator scratch", 8 * mib}, {"communicator landing", 8 * mib + 256}}));
}

TEST(HostMemoryPlan, TheLargestCallOfAnyKindCounts) {
  const std::vector<CollectiveUse> uses = {{"shard", CollectiveKind::all_gather, 3 * mib},
                                           {"shard", CollectiveKind::reduce_scatter, 8 * mib},
                                           {"shard", CollectiveKind::all_to_all, 4 * mib}};
  EXPECT_EQ(planned(uses, 4, Way::threads), Lines{});
  EXPECT_EQ(planned(uses, 4, Way::gloo), (Lines{{"communicator landing", 6 * mib + 3 * 256}}));
  EXPECT_EQ(planned(uses, 4, Way::shared_memory), (Lines{{"shared outboxes", 12 * mib}}));
}

TEST(HostMemoryPlan, OutboxesGrowInSteps) {
  EXPECT_EQ(planned({{"shard", CollectiveKind::broadcast, 1}}, 4, Way::shared_memory),
            (Lines{{"shared outboxes", mib / 2}}));
}

TEST(HostMemoryPlan, TheProcessCanBeMeasured) {
  EXPECT_GT(anonymous_memory(), 0U);
  EXPECT_GT(process_memory(4, false).bytes, process_memory(1, false).bytes);
  EXPECT_GT(process_memory(1, true).bytes, process_memory(1, false).bytes);
}

}  // namespace
}  // namespace ananke::host
