#include "runtime/binding/rank_binding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "ananke/faults.pb.h"
#include "runtime/base/error.h"
#include "tests/refusal.h"
#include "tests/runtime/binding/node_tree.h"

namespace ananke {
namespace {

using Cpus = std::vector<std::uint64_t>;

std::vector<NumberRange> ranges(const char* text) { return *parse_number_list(text); }

RankBinding on_jupiter(int rank) {
  return {.rank = rank,
          .node = rank < 4 ? "n0" : "n1",
          .cpus = fmt::format("{}-{}", 72 * (rank % 4), 72 * (rank % 4) + 71),
          .memory = "0-3",
          .device = fmt::format("GPU-{}", rank),
          .device_numa = rank % 4,
          .adapters = {fmt::format("mlx5_{}", rank % 4)},
          .down = {}};
}
std::vector<RankBinding> eight() {
  std::vector<RankBinding> all;
  for (int rank = 0; rank < 8; ++rank) all.push_back(on_jupiter(rank));
  return all;
}
Binding strict() {
  Binding rules;
  rules.set_least_cpus(72);
  rules.set_own_cpus(true);
  rules.set_near_memory(true);
  rules.set_near_adapter(true);
  return rules;
}
// The one refusal; empty: none.
std::string refusal(const std::vector<RankBinding>& ranks, const Binding& rules) {
  const BindingVerdict verdict = judge_binding(ranks, rules);
  EXPECT_LE(verdict.refusals.size(), 1u);
  return verdict.refusals.empty() ? "" : verdict.refusals.front();
}
void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(JudgeBinding, WhatIsRightPassesTheStrictestRules) {
  EXPECT_EQ(refusal(eight(), strict()), "");
  EXPECT_TRUE(judge_binding(eight(), strict()).warnings.empty());
}

TEST(JudgeBinding, TwoRanksWithOneGpuAreBothNamedByAnyRules) {
  std::vector<RankBinding> ranks = eight();
  ranks[6].device = "GPU-5";
  expect_in(refusal(ranks, {}), "ranks 5 and 6 on n1 both have GPU-5; every rank needs a GPU of its own");
  ranks = eight();
  ranks[6].device = "GPU-1";
  EXPECT_EQ(refusal(ranks, {}), "") << "of another node";
}

TEST(JudgeBinding, TooFewCpusSharedOnesAndFarMemoryAreRefusedWhereTheSiteSaysSo) {
  std::vector<RankBinding> ranks = eight();
  ranks[3].cpus = "216";
  expect_in(refusal(ranks, strict()), "rank 3 on n0 may run on 1 CPUs (216), and binding.least_cpus of the site is 72");
  EXPECT_EQ(refusal(ranks, {}), "");
  ranks = eight();
  ranks[2].cpus = "140-215";
  expect_in(refusal(ranks, strict()), "ranks 1 and 2 on n0 share CPUs (72-143 and 140-215)");
  expect_in(refusal(ranks, strict()), "or let the ranks do it (binding.cpus: NEAREST)");
  Binding nearest = strict();
  nearest.set_cpus(Binding::NEAREST);
  expect_in(refusal(ranks, nearest), "fewer CPUs than ranks");
  EXPECT_EQ(refusal(ranks, nearest).find("NEAREST"), std::string::npos) << "that is what the site has";
  ranks = eight();
  ranks[7].memory = "1";
  expect_in(refusal(ranks, strict()),
            "rank 7 on n1 may take memory of NUMA nodes 1 only, and its device GPU-7 is on 3");
  EXPECT_EQ(judge_binding(ranks, {}).warnings.size(), 1u) << "told all the same";
}

TEST(JudgeBinding, AnAdapterThatIsDownIsToldAndWithoutOneNothingIs) {
  std::vector<RankBinding> ranks = eight();
  ranks[1].down = ranks[1].adapters;
  expect_in(refusal(ranks, strict()),
            "rank 1 on n0: the InfiniBand adapter nearest to its device GPU-1 is down: mlx5_1");
  expect_in(judge_binding(ranks, {}).warnings.at(0), "mlx5_1");
  ranks[1].adapters = {"mlx5_1", "mlx5_8"};
  EXPECT_EQ(refusal(ranks, strict()), "") << "one of two goes on";
  ranks[1].adapters = ranks[1].down = {};
  EXPECT_EQ(refusal(ranks, strict()), "");
}

TEST(JudgeBinding, WhatTheKernelDoesNotSayIsUnknownAndNoPass) {
  std::vector<RankBinding> ranks = eight();
  ranks[4].cpus.clear();
  expect_in(refusal(ranks, strict()), "rank 4 on n1: UNKNOWN on which CPUs it runs");
  expect_in(judge_binding(ranks, {}).warnings.at(0), "UNKNOWN");
}

TEST(ShareOfCpus, IsAnEqualPartOfWhatIsAllowedThere) {
  EXPECT_EQ(share_of_cpus(ranges("0-287"), ranges("72-75"), 0, 1), (Cpus{72, 73, 74, 75}));
  EXPECT_EQ(share_of_cpus(ranges("0-15"), ranges("0-7"), 1, 3), (Cpus{2, 3, 4}));
  EXPECT_EQ(share_of_cpus(ranges("0-15"), ranges("0-7"), 2, 3), (Cpus{5, 6, 7}));
  EXPECT_EQ(share_of_cpus(ranges("6-7"), ranges("0-7"), 1, 2), (Cpus{7})) << "a control group has taken the others";
  EXPECT_EQ(share_of_cpus(ranges("0"), ranges("0-7"), 1, 2), (Cpus{0})) << "fewer CPUs than ranks";
  EXPECT_TRUE(share_of_cpus(ranges("0-71"), ranges("72-143"), 0, 1).empty());
}

TEST(ReadBinding, IsWhatTheKernelSaysAndWhatIsNear) {
  NodeTree tree(gh200_node);
  tree.process("72-143", "0-3");
  const RankBinding binding = read_binding(tree.path(), 5, "jpbo-001-02", {"GPU-00000001", -1});
  EXPECT_EQ(
      to_string(binding),
      "rank 5 on jpbo-001-02: CPUs 72-143, memory of NUMA nodes 0-3, device GPU-00000001 on NUMA node 1, near mlx5_1");
  EXPECT_EQ(to_string(unpack_binding(pack(binding))), to_string(binding));
  const TemporaryFolder empty;
  EXPECT_EQ(to_string(read_binding(empty.path(), 0, "n", {})),
            "rank 0 on n: CPUs UNKNOWN, memory of NUMA nodes UNKNOWN");
  EXPECT_ERROR(unpack_binding("nonsense"), ErrorKind::internal, "no record of a rank's binding");
}

// On a thread of its own, since what is bound stays so; and back, since there are others.
TEST(BindToCpus, HoldsForAllThreadsByTheKernelsWord) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  Cpus all;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) all.push_back(cpu);
  }
  ASSERT_FALSE(all.empty());
  bind_to_cpus({all.front()});
  std::string seen;
  std::thread([&] { seen = read_binding("/", 0, "n", {}).cpus; }).join();
  EXPECT_EQ(seen, std::to_string(all.front()));
  EXPECT_ERROR(bind_to_cpus({1000000}), ErrorKind::resource, "cannot bind thread");
  bind_to_cpus(all);
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

}  // namespace
}  // namespace ananke
