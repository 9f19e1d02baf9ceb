// A rank whose device takes twice as long as the others' for the same work, by numbers and not by any clock.
#include "runtime/engine/slow_rank.h"

#include <gtest/gtest.h>

#include "tests/equivalence/rank_runs.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

std::vector<std::string> slow_ranks_told(const RunResult& result) {
  std::vector<std::string> told;
  for (const std::string& event : result.events) {
    if (event.find("same work") != std::string::npos) told.push_back(event);
  }
  return told;
}

RunResult train_with_slow(int rank, const MeshShape& mesh) {
  const TemporaryFolder folder;
  RunRequest request;
  request.mesh = mesh;
  request.sharing = true;
  request.slow_rank = rank;
  request.expert_chunks = mesh.expert > 1 ? 1 : 0;
  return train(small_job(folder.path(), "training { steps: 12 } evaluation { every_steps: 0 }"), request);
}

TEST(SlowRank, IsNamedInOneEvent) {
  const RunResult result = train_with_slow(1, {.replicate = 1, .shard = 2});
  ASSERT_EQ(result.steps.size(), 12u);
  EXPECT_FALSE(result.steps.front().work().has_straggler()) << "a step's time is known in the next";
  for (std::size_t i = 1; i < result.steps.size(); ++i) {
    const WorkRecord& work = result.steps[i].work();
    EXPECT_EQ(work.straggler_rank(), 1u);
    EXPECT_GE(work.straggler(), SlowRankWatch::much);
    EXPECT_GE(work.waiting(), 0);
    EXPECT_LE(work.waiting(), 1);
  }
  const std::vector<std::string> told = slow_ranks_told(result);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NAMES(told[0], "rank 1 has taken");
  EXPECT_NAMES(told[0], "in 10 steps running; its node is slow");
  EXPECT_EQ(told[0].find("experts"), std::string::npos);
}

TEST(SlowRank, IsNobodyAmongEqualsAndMayHaveBusierExperts) {
  EXPECT_TRUE(slow_ranks_told(train_with_slow(7, {.replicate = 1, .shard = 2})).empty());
  const std::vector<std::string> told = slow_ranks_told(train_with_slow(0, {.replicate = 1, .shard = 2, .expert = 2}));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NAMES(told[0], "its node is slow, or its experts have more to do");
}

}  // namespace
}  // namespace ananke
