// `ananke topology` of allocations that nobody has: what is refused, what is printed and drawn.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "launcher/command.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using Words = std::vector<std::string>;

int run(const Words& words) {
  for (const Command& command : all_commands()) {
    if (std::string(command.name) == "topology") return command.run(words);
  }
  ADD_FAILURE() << "there is no command topology";
  return -1;
}

std::string output_of(const Words& words) {
  testing::internal::CaptureStdout();
  try {
    EXPECT_EQ(run(words), 0);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  return testing::internal::GetCapturedStdout();
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(TopologyCommand, RefusesWhatCannotBe) {
  unsetenv("SLURM_JOB_ID");
  EXPECT_ERROR(run({}), ErrorKind::usage, "no nodes: give --hosts or --nodes, or call it inside of an allocation");
  EXPECT_ERROR(run({"--hosts", "a", "--nodes", "1"}), ErrorKind::usage, "--hosts and --nodes exclude each other");
  EXPECT_ERROR(run({"--hosts", "a[1-"}), ErrorKind::config, "--hosts is 'a[1-'");
  EXPECT_ERROR(run({"--hosts", "a,a"}), ErrorKind::config, "node a is named twice");
  EXPECT_ERROR(run({"--hosts", "a", "--seed", "1"}), ErrorKind::usage, "--seed chooses among --nodes");
  for (const char* option : {"--nodes", "--ranks-per-node", "--replicate", "--shard", "--expert"}) {
    for (const char* value : {"0", "-1", "1048577"}) {
      EXPECT_ERROR(run({"--nodes", "2", option, value}), ErrorKind::usage, option);
    }
  }
  EXPECT_ERROR(run({"--nodes", "4097", "--ranks-per-node", "1048576"}), ErrorKind::usage, "are 4296015872 ranks");
  EXPECT_ERROR(run({"--nodes", "2", "--expert", "3"}), ErrorKind::usage, "2 ranks do not make up", "axis of 3");
  EXPECT_ERROR(run({"--nodes", "2", "--replicate", "4"}), ErrorKind::usage, "replicate 4");
  EXPECT_ERROR(run({"--nodes", "2", "--shard", "4"}), ErrorKind::usage, "shard 4");
  EXPECT_ERROR(run({"--nodes", "2", "job.textproto", "--expert", "2"}), ErrorKind::usage, "a job has its mesh");
  EXPECT_ERROR(run({"--nodes", "2", "--set", "mesh.expert=2"}), ErrorKind::usage, "no JOB is given", "--expert");
  EXPECT_ERROR(run({"--nodes", "2", "--site", "jupitre"}), ErrorKind::config, "did you mean 'jupiter'?");
  EXPECT_ERROR(run({"--nodes", "6001", "--site", "jupiter"}), ErrorKind::usage, "site 'jupiter' has 6000 nodes");
}

TEST(TopologyCommand, ShowsAnAllocationOfJupiterThatNobodyHas) {
  const TemporaryFolder folder;
  const std::string svg = (folder / "t.svg").string();
  const std::string text = output_of(
      {"--site", "jupiter", "--nodes", "384", "--seed", "3", "--replicate", "4", "--expert", "4", "--svg", svg});
  EXPECT_NAMES(text,
               "jupiter: 1536 ranks, 4 on each of 384 nodes; replicate 4 x shard 384 (expert_shard 96 x expert 4)");
  EXPECT_NAMES(text, "where nodes are: by names (jpbo-{rack:3}-{slot:2})");
  EXPECT_NAMES(text, "expert          384           4            384             384");
  EXPECT_EQ(count_of(text, "\nreplica "), 4u);
  std::size_t nodes = 0;
  for (std::size_t at = 0; (at = text.find("  rack ", at)) != std::string::npos; ++at) {
    const std::string line = text.substr(at + 13, text.find('\n', at) - at - 13);
    for (const char letter : {'0', '1', '2', '3'}) nodes += static_cast<std::size_t>(std::ranges::count(line, letter));
  }
  EXPECT_EQ(nodes, 384u) << "every node is drawn once";
  const std::string drawing = read_text(svg);
  EXPECT_EQ(count_of(drawing, "<title>jpbo-"), 384u);
  EXPECT_EQ(drawing.rfind("</svg>\n"), drawing.size() - 7);
  // As many lines as the table counts edges of the shard axis between groups.
  const std::string row = text.substr(text.find("\n  shard "));
  const std::string numbers = row.substr(0, row.find('\n', 1));
  EXPECT_EQ(count_of(drawing, "<path "), std::stoul(numbers.substr(numbers.rfind(' '))));
  EXPECT_EQ(output_of({"--site", "jupiter", "--nodes", "384", "--seed", "3", "--replicate", "4", "--expert", "4"}) +
                "drawing: " + svg + "\n",
            text);
}

TEST(TopologyCommand, IsTheSameForNodesInAnyOrder) {
  EXPECT_EQ(output_of({"--site", "jupiter", "--hosts", "jpbo-007-[01-04],jpbo-001-03", "--expert", "4"}),
            output_of({"--site", "jupiter", "--hosts", "jpbo-001-03,jpbo-007-[03,04,01,02]", "--expert", "4"}));
}

TEST(TopologyCommand, SaysWhatItDoesNotKnow) {
  const std::string text = output_of({"--site", "jupiter", "--hosts", "jpbo-001-03,jwb0001", "--ranks-per-node", "1"});
  EXPECT_NAMES(text, "note: 1 of 2 nodes (jwb0001) are not called as site 'jupiter' knows them");
  EXPECT_NAMES(text, "group   ?  rack    ?  0");
}

TEST(TopologyCommand, ListsRanksAndWhatIsLeftOver) {
  EXPECT_EQ(output_of({"--hosts", "n10,n9,n1", "--ranks-per-node", "2", "--shard", "4", "--ranks"}),
            "0-1 n1 group ? rack ?\n2-3 n9 group ? rack ?\n");
  const std::string text =
      output_of({"--hosts", "n10,n9,n1", "--ranks-per-node", "2", "--shard", "4", "--replicate", "1"});
  EXPECT_NAMES(text, "left over: 1 nodes: n10");
  EXPECT_NAMES(text, "00.");
}

TEST(TopologyCommand, TakesTheMeshOfAJob) {
  const std::string job = ANANKE_SOURCE_DIR "/site/local/jobs/experts.textproto";
  EXPECT_NAMES(output_of({job, "--nodes", "2", "--ranks-per-node", "2"}),
               "replicate 1 x shard 4 (expert_shard 2 x expert 2)");
}

TEST(TopologyCommand, TakesTheNodesOfAnAllocation) {
  setenv("SLURM_JOB_ID", "7", 1);
  setenv("SLURM_JOB_NODELIST", "jpbo-001-[01-02]", 1);
  EXPECT_NAMES(output_of({"--site", "jupiter"}), "jupiter: 8 ranks, 4 on each of 2 nodes");
  unsetenv("SLURM_JOB_ID");
  unsetenv("SLURM_JOB_NODELIST");
}

}  // namespace
}  // namespace ananke
