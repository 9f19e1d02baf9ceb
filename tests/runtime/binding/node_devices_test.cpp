// Trees of proc and sys as of two machines: a node of four GH200, and one with two GPUs behind switches.
#include "runtime/binding/node_devices.h"

#include <gtest/gtest.h>

#include "tests/runtime/binding/node_tree.h"

namespace ananke {
namespace {

std::vector<std::string> names_of(const std::vector<Adapter>& adapters) {
  std::vector<std::string> names;
  for (const Adapter& adapter : adapters) names.push_back(adapter.name);
  return names;
}

TEST(NodeDevices, NothingIsMadeUpWhereNothingIsThere) {
  const TemporaryFolder empty;
  EXPECT_TRUE(read_numa_cpus(empty.path()).empty());
  EXPECT_TRUE(read_gpus(empty.path()).empty());
  EXPECT_TRUE(read_adapters(empty.path()).empty());
  EXPECT_TRUE(nearest_adapters({}, {}).empty());
  EXPECT_TRUE(nearest_adapters({{"mlx5_0", {}, true}}, {}).empty()) << "nobody says where anything is";
}

// Of 36 NUMA nodes four have CPUs.
TEST(NodeDevices, OfManyNumaNodesThoseWithCpusCount) {
  const NodeTree tree(gh200_node);
  const std::vector<NumaCpus> nodes = read_numa_cpus(tree.path());
  ASSERT_EQ(nodes.size(), 4u);
  EXPECT_EQ(nodes[3].id, 3);
  EXPECT_TRUE(contains_number(nodes[3].cpus, 216));
  EXPECT_FALSE(contains_number(nodes[3].cpus, 215));
}

// Every GPU and every adapter is the root of a domain of its own: only the NUMA node says what is near.
TEST(NodeDevices, WhereNoBridgeIsSharedTheNumaNodeDecides) {
  const NodeTree tree(gh200_node);
  const std::vector<Gpu> gpus = read_gpus(tree.path());
  ASSERT_EQ(gpus.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(gpus[i].uuid, "GPU-0000000" + std::to_string(i));
    EXPECT_EQ(gpus[i].place.numa, static_cast<int>(i));
    EXPECT_EQ(names_of(nearest_adapters(read_adapters(tree.path()), gpus[i].place)),
              std::vector<std::string>{"mlx5_" + std::to_string(i)});
  }
}

// All on NUMA node 0: the switch decides. The second GPU's has two adapters, one of them down.
TEST(NodeDevices, TheSameSwitchIsNearerThanTheSameNumaNode) {
  const NodeTree tree(switched_node);
  const std::vector<Adapter> adapters = read_adapters(tree.path());
  const std::vector<Gpu> gpus = read_gpus(tree.path());
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(names_of(nearest_adapters(adapters, gpus[0].place)), std::vector<std::string>{"mlx5_0"});
  const std::vector<Adapter> second = nearest_adapters(adapters, gpus[1].place);
  EXPECT_EQ(names_of(second), (std::vector<std::string>{"mlx5_1", "mlx5_2"}));
  EXPECT_TRUE(second[0].active);
  EXPECT_FALSE(second[1].active);
}

}  // namespace
}  // namespace ananke
