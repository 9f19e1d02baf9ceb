#include "launcher/slurm/spares.h"

#include <gtest/gtest.h>

namespace ananke {
namespace {

constexpr double gib = 1 << 30;

void add(HealthReport* report, const std::string& name, HealthVerdict verdict, const std::vector<double>& free = {}) {
  NodeHealth& node = *report->add_node();
  node.set_node(name);
  node.set_verdict(verdict);
  CheckResult& check = *node.add_check();
  check.set_id("mem.numa_cpu");
  check.set_verdict(verdict);
  check.set_reason("because");
  for (const double one : free) {
    HealthValue& value = *check.add_value();
    value.set_name("free");
    value.set_number(one);
  }
}

LiveNodes nodes(const std::vector<std::string>& names) {
  LiveNodes live;
  live.live = names;
  return live;
}

using Gone = std::vector<std::pair<std::string, std::string>>;

TEST(Spares, BadAndUnknownNodesAreLeftOutWithTheirReason) {
  HealthReport report;
  add(&report, "a", PASS);
  add(&report, "b", FAIL);
  add(&report, "c", UNKNOWN);
  add(&report, "d", WARN);
  LiveNodes there = nodes({"a", "b", "c", "d", "e"});
  there.gone.emplace_back("x", "down");
  leave_out_bad(report, &there);
  EXPECT_EQ(there.live, (std::vector<std::string>{"a", "d"}));
  EXPECT_EQ(there.gone, (Gone{{"x", "down"},
                              {"b", "FAIL (mem.numa_cpu: because)"},
                              {"c", "UNKNOWN (mem.numa_cpu: because)"},
                              {"e", "UNKNOWN (it was not asked)"}}));
}

TEST(Spares, NodesWithTooLittleMemoryAreLeftOut) {
  HealthReport report;
  add(&report, "a", PASS, {110 * gib, 110 * gib, 110 * gib, 110 * gib});
  add(&report, "b", PASS, {110 * gib, 110 * gib, 58 * gib, 110 * gib});
  add(&report, "c", PASS);
  LiveNodes there = nodes({"a", "b", "c"});
  leave_out_small(report, 4, static_cast<std::uint64_t>(60 * gib), &there);
  EXPECT_EQ(there.live, std::vector<std::string>{"a"});
  EXPECT_EQ(there.gone, (Gone{{"b", "58.0 GiB of host memory on its fullest NUMA node, and its ranks need 60.0 GiB"},
                              {"c", "its free memory is not known"}}));
  // Two ranks have two NUMA nodes each; eight share them by twos.
  there = nodes({"a", "b"});
  leave_out_small(report, 2, static_cast<std::uint64_t>(190 * gib), &there);
  EXPECT_EQ(there.live, (std::vector<std::string>{"a", "b"}));
  leave_out_small(report, 8, static_cast<std::uint64_t>(30 * gib), &there);
  EXPECT_EQ(there.live, std::vector<std::string>{"a"});
}

TEST(Spares, RanksDoNotSpreadOverTheSpareNodes) {
  EXPECT_EQ(ranks_per_node_with_spares(8, 3, 1), 4);
  EXPECT_EQ(ranks_per_node_with_spares(8, 4, 1), 0);
  EXPECT_EQ(ranks_per_node_with_spares(8, 2, 0), 0) << "as before";
  EXPECT_EQ(ranks_per_node_with_spares(8, 1, 1), 0);
}

}  // namespace
}  // namespace ananke
