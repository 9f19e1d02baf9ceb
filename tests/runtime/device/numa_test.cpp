#include "runtime/device/numa.h"

#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "tests/temporary_folder.h"

namespace ananke {
namespace {

void put(const std::filesystem::path& sys, int node, const std::string& cpus) {
  const auto folder = sys / ("devices/system/node/node" + std::to_string(node));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "cpulist") << cpus << "\n";
}

TEST(Numa, NodeOfTheProcessIsUnknownWhereFilesDoNotSay) {
  const TemporaryFolder sys;
  EXPECT_EQ(numa_node_of_process(sys / "nothing"), -1);
  put(sys.path(), 0, "no list");
  EXPECT_EQ(numa_node_of_process(sys.path()), -1);
  put(sys.path(), 0, "0-1023x");
  EXPECT_EQ(numa_node_of_process(sys.path()), -1);
}

TEST(Numa, NodeOfTheProcessIsTheOneThatHasAllItsCpus) {
  const TemporaryFolder sys;
  put(sys.path(), 0, "");  // memory alone
  put(sys.path(), 3, "0-1023");
  EXPECT_EQ(numa_node_of_process(sys.path()), 3);
  put(sys.path(), 1, "0-500,501,502-1023");
  EXPECT_EQ(numa_node_of_process(sys.path()), -1) << "on two nodes";
}

TEST(Numa, PagesOfTouchedMemoryAreSomewhereOrUnknownWithAReason) {
  const NumaPreference none(-1);
  EXPECT_FALSE(none.granted());
  const std::vector<char> memory(std::size_t{1} << 22, 1);
  NumaPages pages = numa_pages(memory.data(), memory.size());
  std::size_t known = 0;
  for (const auto& [node, count] : pages.on) known += count;
  EXPECT_EQ(known + pages.unknown, 512u);
  EXPECT_EQ(pages.why.empty(), pages.unknown == 0);
  pages += numa_pages(memory.data(), 1);
  EXPECT_EQ(numa_pages(memory.data(), 0).unknown, 0u);
}

TEST(Numa, VerdictsNameWhatIsKnown) {
  bool wrong = true;
  EXPECT_NE(numa_verdict({{}, 5, "move_pages: Operation not permitted"}, 1, wrong)
                .find("UNKNOWN (move_pages: Operation not permitted)"),
            std::string::npos);
  EXPECT_FALSE(wrong);
  EXPECT_EQ(numa_verdict({{{1, 512}}, 0, ""}, 1, wrong), "on NUMA node 1, its own: 512 pages looked at");
  EXPECT_FALSE(wrong);
  EXPECT_EQ(numa_verdict({{{0, 12}, {1, 500}}, 0, ""}, 1, wrong),
            "12 of 512 pages looked at are not on its own NUMA node 1: 12 of them on node 0, 500 of them on node 1");
  EXPECT_TRUE(wrong);
  EXPECT_NE(numa_verdict({{{0, 512}}, 0, ""}, -1, wrong).find("own node is UNKNOWN"), std::string::npos);
  EXPECT_FALSE(wrong);
}

}  // namespace
}  // namespace ananke
