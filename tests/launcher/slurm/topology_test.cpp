#include "launcher/slurm/topology.h"

#include <poll.h>

#include "ananke/site.pb.h"
#include "launcher/slurm/srun_launch.h"
#include "tests/launcher/slurm/fake_programs.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

using Names = std::vector<std::string>;
using std::chrono::milliseconds;

constexpr milliseconds patience{20'000};

const char* const tree =
    "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]\n"
    "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2,5]\n"
    "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[0-2,5] Switches=s[0-1]\n";

TEST(SlurmTopology, RefusesAListThatIsNone) {
  EXPECT_ERROR(parse_slurm_topology("SwitchName=s0 Level=0 Nodes=n[0-\n"), ErrorKind::config,
               "Nodes of s0 in `scontrol show topology`", "n[0-");
}

TEST(SlurmTopology, IsReadAsTheVariablesHaveIt) {
  const auto addresses = parse_slurm_topology(tree);
  ASSERT_EQ(addresses.size(), 4u);
  EXPECT_EQ(addresses.at("n1").address, "top.s0.n1");
  EXPECT_EQ(addresses.at("n5").address, "top.s1.n5");
  EXPECT_EQ(addresses.at("n5").pattern, "switch.switch.node");
  const auto blocks = parse_slurm_topology(
      "BlockName=b1 BlockIndex=0 Nodes=n[0-1] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n2 BlockSize=2\n");
  EXPECT_EQ(blocks.at("n2").address, "b2.n2");
  EXPECT_EQ(blocks.at("n2").pattern, "block.node");
}

TEST(SlurmTopology, IsEmptyWhereSlurmHasNone) {
  for (const char* text : {"", "No topology information available\n", "SwitchName=s0 Level=0 Nodes=(null)\n"}) {
    EXPECT_TRUE(parse_slurm_topology(text).empty()) << text;
  }
  EXPECT_EQ(parse_slurm_topology("SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=b Nodes=n1\n").size(),
            1u)
      << "switches in a circle";
}

Site site_of(const std::string& pattern) {
  Site site;
  site.set_name("here");
  site.set_start(Site::SRUN);
  site.mutable_slurm()->set_launcher_address("10.1.2.3");
  site.mutable_slurm()->mutable_batch();
  site.mutable_slurm()->set_ranks_per_node(2);
  if (pattern.empty()) return site;
  HostNames& names = *site.mutable_topology()->add_host_names();
  names.set_pattern(pattern);
  names.set_racks_per_group(5);
  return site;
}

class PlacesUnderSlurm : public FakePrograms {
 protected:
  PlacesUnderSlurm() {
    program("srun", "case $1 in --version) echo slurm 22.05.8;; --mpi=list) echo none;; esac");
    program("sinfo", "exit 0");
    setenv("SLURM_JOB_ID", "77", 1);
  }
  ~PlacesUnderSlurm() override {
    for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_NODELIST"}) unsetenv(name);
  }
  static std::string groups_of(const Places& places) {
    std::string text;
    for (const NodePlace& node : places.nodes) text += node.node + ":" + node.group + " ";
    return text;
  }
};

TEST_F(PlacesUnderSlurm, AskSlurmOnlyWhereNamesDoNotTell) {
  program("scontrol", "echo asked >> " + file("asked") + "; cat " + file("tree"));
  std::ofstream(file("tree")) << tree;
  EXPECT_EQ(groups_of(places_of_nodes({"r1-1", "r9-1"}, site_of("r{rack}-{slot}"), patience)), "r1-1:1 r9-1:2 ");
  EXPECT_EQ(text_of("asked"), "");
  EXPECT_EQ(groups_of(places_of_nodes({"n5", "n0", "n1"}, site_of(""), patience)), "n0:s0 n1:s0 n5:s1 ");
  EXPECT_EQ(text_of("asked"), "asked\n");
  EXPECT_EQ(groups_of(places_of_nodes({"n5"}, site_of(""), patience)), "n5: ");
  EXPECT_EQ(text_of("asked"), "asked\n") << "one node has no neighbours";
}

TEST_F(PlacesUnderSlurm, SayThatSlurmCouldNotBeAsked) {
  program("scontrol", "echo controller is away >&2; exit 1");
  const Places failed = places_of_nodes({"n5", "n0"}, site_of(""), patience);
  EXPECT_EQ(groups_of(failed), "n0: n5: ");
  ASSERT_EQ(failed.notices.size(), 2u);
  EXPECT_NAMES(failed.notices[1], "UNKNOWN whether Slurm knows its switches: `scontrol show topology` ended with exit");
  program("scontrol", "sleep 100");
  EXPECT_NAMES(places_of_nodes({"n5", "n0"}, site_of(""), milliseconds(50)).notices[1], "did not end within 50 ms");
}

// What the workers are started with: an allocation that names its nodes in an order of its own.
TEST_F(PlacesUnderSlurm, DecideTheRanksOfALaunch) {
  program("scontrol", "exit 1");
  setenv("SLURM_JOB_NODELIST", "r9-2,r1-10,r12-3,r1-9,r9-1,r2-1", 1);
  const Names expected{"r1-9", "r1-10", "r2-1", "r9-1", "r9-2"};
  const SrunPlan plan = plan_srun(site_of("r{rack}-{slot}"), {1, 10, 2});
  EXPECT_EQ(plan.srun.layout.nodes, expected) << "and the only node of its group is left over";
  EXPECT_EQ(plan.srun.layout.unused, Names{"r12-3"});
  EXPECT_EQ(plan.ranks.node_names(), expected);
  setenv("SLURM_JOB_NODELIST", "r1-[9-10],r12-3,r2-1,r9-[1-2]", 1);
  EXPECT_EQ(plan_srun(site_of("r{rack}-{slot}"), {1, 10, 2}).ranks.hash(), plan.ranks.hash());

  program("srun", "echo $ANANKE_NODES > " + file("nodes"));
  LaunchSpec spec;
  spec.ranks = 10;
  spec.arguments = {"ananke", "worker"};
  SrunWorkers workers(spec, plan.srun);
  workers.start({});
  EXPECT_EQ(workers.host(5), "r2-1");
  for (bool running = true; running;) {
    std::vector<pollfd> ready;
    workers.watch(ready);
    poll(ready.data(), ready.size(), 100);
    workers.take_news();
    running = workers.is_running(0);
  }
  EXPECT_EQ(text_of("nodes"), "r1-9,r1-10,r2-1,r9-1,r9-2\n");
}

}  // namespace
}  // namespace ananke
