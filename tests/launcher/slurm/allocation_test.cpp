#include "launcher/slurm/allocation.h"

#include <gtest/gtest.h>

#include <map>

#include "runtime/base/error.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

using Environment = std::map<std::string, std::string>;
using Names = std::vector<std::string>;

const Environment good{
    {"SLURM_JOB_ID", "77"},         {"SLURM_JOB_NODELIST", "node[0-2]"}, {"SLURM_JOB_CPUS_PER_NODE", "16(x2),8"},
    {"SLURM_NTASKS_PER_NODE", "4"}, {"SLURM_RESTART_COUNT", "2"},        {"SLURMD_NODENAME", "node1"}};

std::optional<Allocation> read(const Environment& environment) {
  return read_allocation([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}
Environment with(const std::string& name, const std::string& value) {
  Environment changed = good;
  changed[name] = value;
  return changed;
}
std::string refused(const std::string& name, const std::string& value) {
  return refusal(ErrorKind::config, [&] { read(with(name, value)); });
}

TEST(Allocation, QuotesTheVariableThatCannotBe) {
  for (const char* name : {"SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_RESTART_COUNT"}) {
    for (const char* value : {"unlimited", "-1", "1.5", "99999999999999999999", " 1"}) {
      EXPECT_NE(refused(name, value).find(fmt::format("the environment says {}='{}'", name, value)), std::string::npos)
          << refused(name, value);
    }
  }
  EXPECT_EQ(refused("SLURM_JOB_NODELIST", ""),
            "SLURM_JOB_ID is 77, but SLURM_JOB_NODELIST is not set: this is no allocation of nodes; start the job by "
            "sbatch or in a shell of salloc, or unset SLURM_JOB_ID for a site with start: LOCAL");
  EXPECT_NE(refused("SLURM_JOB_NODELIST", "node[").find("the environment's SLURM_JOB_NODELIST is 'node['"),
            std::string::npos);
  EXPECT_NE(refused("SLURM_JOB_CPUS_PER_NODE", "16").find("has 3 nodes, SLURM_JOB_CPUS_PER_NODE='16' has 1"),
            std::string::npos);
}

TEST(Allocation, ReadsSlurmsVariablesAndTakesEmptyForUnset) {
  EXPECT_FALSE(read({}));
  EXPECT_FALSE(read(with("SLURM_JOB_ID", "")));
  const Allocation full = *read(good);
  EXPECT_EQ(full.nodes, (Names{"node0", "node1", "node2"}));
  EXPECT_EQ(full.cpus, (std::vector<int>{16, 16, 8}));
  EXPECT_EQ(full.tasks_per_node, 4);
  EXPECT_EQ(full.restarts, 2);
  EXPECT_EQ(full.here, "node1");
  Environment bare = good;
  for (auto& [name, value] : bare) {
    if (name != "SLURM_JOB_ID" && name != "SLURM_JOB_NODELIST") value.clear();
  }
  const Allocation least = *read(bare);
  EXPECT_TRUE(least.cpus.empty());
  EXPECT_FALSE(least.tasks_per_node);
  EXPECT_EQ(least.here, "");
  EXPECT_EQ(read(with("SLURMD_NODENAME", "login3"))->here, "");
}

TEST(StepLayout, SaysWhatDoesNotFit) {
  Allocation allocation = *read(good);
  const auto refused_layout = [&](int ranks, int per_node, const Names& live, const std::string& gone = "") {
    return refusal(ErrorKind::config, [&] { lay_out(allocation, live, gone, ranks, per_node); });
  };
  EXPECT_EQ(
      refused_layout(4, 0, {}, "node0 down"),
      "no node of job 77 can be used (not there: node0 down); `sinfo -R` says why nodes are out: submit again, with "
      "--exclude where they are still offered");
  EXPECT_EQ(refused_layout(6, 0, allocation.nodes),
            "6 ranks are no multiple of the 4 that a node takes by --ntasks-per-node; change the mesh or that");
  EXPECT_EQ(refused_layout(16, 0, {"node0", "node2"}, "node1 down"),
            "16 ranks at 4 a node (by --ntasks-per-node) need 4 nodes, and job 77 has 2 (not there: node1 down); "
            "allocate more");
  EXPECT_NE(refused_layout(8, 3, allocation.nodes).find("by the site's slurm.ranks_per_node"), std::string::npos);
  allocation.tasks_per_node.reset();
  EXPECT_NE(refused_layout(4, 0, allocation.nodes).find("4 ranks do not spread evenly over the 3 nodes of job 77"),
            std::string::npos);
}

TEST(StepLayout, FillsTheFirstLiveNodes) {
  Allocation allocation = *read(good);
  const StepLayout some = lay_out(allocation, {"node0", "node2"}, "", 4, 0);
  EXPECT_EQ(some.nodes, Names{"node0"});
  EXPECT_EQ(some.unused, Names{"node2"});
  EXPECT_EQ(some.ranks_per_node, 4);
  EXPECT_EQ(some.cpus_per_rank, 4);
  const StepLayout site = lay_out(allocation, allocation.nodes, "", 6, 2);
  EXPECT_EQ(site.nodes, allocation.nodes);
  EXPECT_EQ(site.cpus_per_rank, 4) << "node2 has 8 for 2";
  allocation.tasks_per_node.reset();
  allocation.cpus_per_task = 3;
  const StepLayout spread = lay_out(allocation, {"node0", "node1"}, "", 6, 0);
  EXPECT_EQ(spread.ranks_per_node, 3);
  EXPECT_EQ(spread.cpus_per_rank, 3);
}

}  // namespace
}  // namespace ananke
