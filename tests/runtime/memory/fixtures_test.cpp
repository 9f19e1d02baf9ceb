// What is made of recorded nodes: reading and room.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/memory/cgroup.h"
#include "runtime/memory/messages.h"
#include "runtime/memory/node_reader.h"
#include "runtime/memory/room.h"
#include "tests/runtime/memory/node_trees.h"

namespace ananke {
namespace {

double gib(std::uint64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(std::uint64_t{1} << 30); }

NodeMemory node_of(const std::string& tree) { return read_node_memory(NodeTree(tree).root(), "n1"); }

std::vector<std::uint32_t> ids_of(const NodeRoom& room) {
  std::vector<std::uint32_t> ids;
  for (const NumaRoom& numa : room.numa) ids.push_back(numa.id);
  return ids;
}

// total = free + reclaimable + what holds the rest.
void expect_adds_up(const NumaRoom& room) {
  std::uint64_t sum = room.free + room.reclaimable;
  for (const HeldMemory& held : room.held) sum += held.bytes;
  EXPECT_EQ(sum, room.total) << "NUMA node " << room.id;
}

TEST(MemoryFixtures, AFolderWithoutAnyFileIsAllTrouble) {
  const TemporaryFolder empty;
  const NodeMemory node = read_node_memory(empty.path(), "n1");
  EXPECT_TRUE(room_of(node, {}).numa.empty());
  ASSERT_EQ(node.trouble_size(), 1);
  EXPECT_EQ(node.trouble(0), (empty / "proc/meminfo").string() + " cannot be read");
  EXPECT_TRUE(read_own_numa_nodes(empty.path(), node).empty());
  EXPECT_TRUE(read_cgroup_limits(empty.path()).limits.empty());
}

TEST(MemoryFixtures, MemoryOfGpusIsNotTheHosts) {
  const NodeMemory node = node_of("gh200_healthy");
  EXPECT_EQ(node.numa_size(), 36);
  EXPECT_EQ(node.trouble_size(), 0);
  const NodeRoom room = room_of(node, {});
  EXPECT_EQ(ids_of(room), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  for (const NumaRoom& numa : room.numa) {
    expect_adds_up(numa);
    EXPECT_NEAR(gib(numa.total), 119, 1);
    EXPECT_GT(gib(numa.available), 108);  // what a job can use there
    EXPECT_LT(gib(numa.unattributed), 5);
    EXPECT_FALSE(is_leak(numa));
  }
  EXPECT_EQ(room.cache_on_devices, 0U);
}

TEST(MemoryFixtures, WatermarksAreInPagesOfTheNode) {  // of 64 KiB there, of 4 KiB here
  EXPECT_NEAR(gib(room_of(node_of("gh200_healthy"), {}).numa[0].kept), 0.1, 0.001);
  EXPECT_NEAR(gib(room_of(node_of("epyc_nps4"), {}).numa[0].kept), 0.1, 0.001);
  EXPECT_NEAR(gib(room_of(node_of("container"), {}).numa[0].kept), 0.1, 0.001);
}

TEST(MemoryFixtures, PageCacheIsToBeHad) {
  const NodeRoom room = room_of(node_of("gh200_cache_hog"), {});
  EXPECT_LT(gib(room.numa[1].free), 35);
  EXPECT_NEAR(gib(room.numa[1].reclaimable), 80, 0.01);
  EXPECT_GT(gib(room.numa[1].available), 108);
}

TEST(MemoryFixtures, DirtyAndLockedCacheIsNot) {
  const NodeRoom room = room_of(node_of("dirty_cache"), {});
  ASSERT_EQ(room.numa.size(), 1U);
  expect_adds_up(room.numa[0]);
  EXPECT_NEAR(gib(room.numa[0].reclaimable), 20, 0.01);
  EXPECT_NEAR(gib(room.numa[0].available), 125 - 30 - 40 - 2 - 0.5 - 0.1, 0.01);
  EXPECT_EQ(room.numa[0].held.front().what, HeldMemory::What::cache);
  EXPECT_NEAR(gib(room.numa[0].held.front().bytes), 70, 0.01);
}

TEST(MemoryFixtures, SharedMemoryIsNotPageCache) {
  const NodeRoom room = room_of(node_of("shmem_hog"), {});
  expect_adds_up(room.numa.at(0));
  EXPECT_EQ(room.numa[0].held.front().what, HeldMemory::What::shared);
  EXPECT_NEAR(gib(room.numa[0].available), 251 - 180 - 2 - 0.5 - 0.1, 0.01);
}

TEST(MemoryFixtures, HugePagesOfAllSizesAreTaken) {
  const NodeMemory node = node_of("huge_pages");
  EXPECT_NEAR(gib(node.numa(0).huge_pages()), 80 + 64, 0.01);
  EXPECT_NEAR(gib(node.numa(0).huge_pages_free()), 40000.0 * 2 / 1024 + 64, 0.01);
  const NodeRoom room = room_of(node, {});
  expect_adds_up(room.numa[0]);
  EXPECT_EQ(room.numa[0].held.front().what, HeldMemory::What::huge_pages);
  EXPECT_EQ(held_text(room.numa[0]), "huge pages that are reserved 144 GiB");
}

TEST(MemoryFixtures, WhatNobodyAccountsForIsFound) {
  const NodeMemory node = node_of("leak_150");
  const NodeRoom room = room_of(node, {});
  EXPECT_NEAR(gib(room.numa[0].unattributed), 150, 0.3);  // less the shares of vmalloc and per-CPU areas
  EXPECT_TRUE(is_leak(room.numa[0]));
  EXPECT_FALSE(is_leak(room.numa[1]));
  const std::string ticket = ticket_text(node, {}, "2026-11-30T09:05:00Z");
  EXPECT_TRUE(ticket.starts_with("Subject: node n1: memory that is neither free nor accounted for\n")) << ticket;
  EXPECT_NE(ticket.find("at 2026-11-30T09:05:00Z, node n1"), std::string::npos);
  EXPECT_NE(ticket.find("    unattributed (nobody accounts for it)               150 GiB\n"), std::string::npos)
      << ticket;
  EXPECT_NE(ticket.find("NUMA node 1"), std::string::npos);
}

TEST(MemoryFixtures, CacheInTheMemoryOfGpusIsSeen) {
  EXPECT_NEAR(gib(room_of(node_of("gh200_cache_on_devices"), {}).cache_on_devices), 80, 0.01);
}

TEST(MemoryFixtures, AllNumaNodesOfAProcessorCount) {
  const NodeRoom room = room_of(node_of("epyc_nps4"), {});
  EXPECT_EQ(room.numa.size(), 8U);
  for (const NumaRoom& numa : room.numa) expect_adds_up(numa);
}

TEST(MemoryFixtures, AVirtualMachineGrowsToWhatItsSiteStates) {
  const NodeMemory node = node_of("virtual_machine");
  const NodeRoom now = room_of(node, {}), grown = room_of(node, {.node_bytes = std::uint64_t{64} << 30});
  EXPECT_NEAR(gib(now.numa[0].total), 23.5, 0.01);
  EXPECT_NEAR(gib(grown.numa[0].total), 64, 0.01);
  EXPECT_NEAR(gib(grown.numa[0].available - now.numa[0].available), 64 - 23.5, 0.01);
  expect_adds_up(grown.numa[0]);
  // Stated as less than there is: what there is counts.
  EXPECT_EQ(room_of(node, {.node_bytes = 1}).numa[0].total, now.numa[0].total);
}

TEST(MemoryFixtures, AReserveIsKeptBack) {
  const NodeMemory node = node_of("virtual_machine");
  const std::uint64_t reserve = std::uint64_t{2} << 30;
  EXPECT_EQ(room_of(node, {}).numa[0].available - room_of(node, {.reserve = reserve}).numa[0].available, reserve);
  EXPECT_EQ(room_of(node, {.reserve = std::uint64_t{1} << 50}).numa[0].available, 0U);
}

TEST(MemoryFixtures, NodesThatAreOfflineOrEmptyAreLeftOut) {
  const NodeTree tree("offline_node");
  const NodeMemory node = read_node_memory(tree.root(), "n1");
  EXPECT_EQ(node.numa_size(), 3);
  EXPECT_FALSE(node.numa(1).online());
  EXPECT_EQ(node.trouble_size(), 0) << node.trouble(0);
  EXPECT_EQ(ids_of(room_of(node, {})), std::vector<std::uint32_t>{0});
  // The CPUs of this process have no memory beside them: it comes from where there is some.
  EXPECT_EQ(read_own_numa_nodes(tree.root(), node), std::vector<std::uint32_t>{0});
}

TEST(MemoryFixtures, ADamagedFileIsNamedAndNotCounted) {
  const NodeMemory node = node_of("damaged");
  ASSERT_EQ(node.trouble_size(), 1);
  EXPECT_EQ(node.trouble(0), "meminfo of NUMA node 1 has no MemTotal and MemFree; its memory is not counted");
  EXPECT_EQ(ids_of(room_of(node, {})), std::vector<std::uint32_t>{0});
}

TEST(MemoryFixtures, AContainerWithoutNumaNodesIsOne) {
  const NodeTree tree("container");
  const NodeMemory node = read_node_memory(tree.root(), "n1");
  EXPECT_TRUE(node.undivided());
  const NodeRoom room = room_of(node, {});
  ASSERT_EQ(room.numa.size(), 1U);
  expect_adds_up(room.numa[0]);
  EXPECT_NEAR(gib(room.numa[0].total), 62, 0.01);
  EXPECT_NEAR(gib(room.numa[0].reclaimable), 3, 0.01);
  EXPECT_EQ(read_own_numa_nodes(tree.root(), node), std::vector<std::uint32_t>{0});
}

TEST(MemoryFixtures, ABoundProcessTakesFromItsOwnNumaNode) {
  const NodeTree tree("gh200_bound"), all("gh200_healthy");
  EXPECT_EQ(read_own_numa_nodes(tree.root(), read_node_memory(tree.root(), "n1")), std::vector<std::uint32_t>{1});
  EXPECT_EQ(read_own_numa_nodes(all.root(), read_node_memory(all.root(), "n1")),
            (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

TEST(MemoryFixtures, ACpusetDecidesWhoseMemoryMayBeUsed) {
  const NodeTree tree("gh200_healthy");
  const NodeMemory node = read_node_memory(tree.root(), "n1");
  const auto bound = [&](const char* cpus, const char* mems) {
    std::ofstream(tree.root() / "proc/self/status")
        << "Name:\tx\nCpus_allowed_list:\t" << cpus << "\nMems_allowed_list:\t" << mems << "\n";
    return read_own_numa_nodes(tree.root(), node);
  };
  EXPECT_EQ(bound("0-71", "0-35"), std::vector<std::uint32_t>{0});
  EXPECT_EQ(bound("0-71", "1"), std::vector<std::uint32_t>{1});  // of another's memory only
  EXPECT_EQ(bound("0-143", "0-3"), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(bound("0-71", "4"), std::vector<std::uint32_t>{});  // of a GPU's only: none of the host's
  EXPECT_EQ(bound("nonsense", "0-3"), (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

TEST(MemoryFixtures, ProcessesThatHoldMuchAreNamed) {
  const NodeTree tree("leftover_process");
  NodeMemory node = read_node_memory(tree.root(), "n1");
  add_memory_holders(tree.root(), node);
  ASSERT_EQ(node.holder_size(), 1);  // the small one is not
  EXPECT_EQ(node.holder(0).process(), 4711U);
  EXPECT_EQ(node.holder(0).name(), "python3");
  EXPECT_EQ(node.holder(0).user(), 1234U);
  EXPECT_NEAR(gib(node.holder(0).bytes()), 85.5, 0.01);
}

TEST(MemoryFixtures, LimitsOfControlGroupsUpTheTree) {
  const CgroupReading two = read_cgroup_limits(NodeTree("cgroup_v2").root());
  ASSERT_EQ(two.limits.size(), 1U);
  EXPECT_EQ(two.limits[0].path(), "/system.slice/slurmstepd.scope/job_77");
  EXPECT_EQ(two.limits[0].file(), "memory.max");
  EXPECT_NEAR(gib(two.limits[0].limit()), 100, 0.01);
  EXPECT_NEAR(gib(two.limits[0].reclaimable()), 24, 0.01);  // less what is dirty
  const CgroupReading one = read_cgroup_limits(NodeTree("cgroup_v1").root());
  ASSERT_EQ(one.limits.size(), 2U);  // the nearest first; the huge number above is none
  EXPECT_EQ(one.limits[0].path(), "/slurm/uid_1000/job_78/step_0");
  EXPECT_NEAR(gib(one.limits[0].limit()), 60, 0.01);
  EXPECT_NEAR(gib(one.limits[1].limit()), 64, 0.01);
  EXPECT_NEAR(gib(one.limits[1].reclaimable()), 8, 0.01);
  EXPECT_TRUE(one.trouble.empty());
}

TEST(MemoryFixtures, ALimitThatCannotBeReadIsTrouble) {
  const NodeTree tree("cgroup_v2");
  const auto group = tree.root() / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_77";
  std::ofstream(group / "memory.high") << "many\n";
  std::filesystem::remove(group / "memory.current");
  const CgroupReading reading = read_cgroup_limits(tree.root());
  ASSERT_EQ(reading.trouble.size(), 2U);
  EXPECT_NE(reading.trouble[0].find("no memory.current; all of it counts as used"), std::string::npos);
  EXPECT_NE(reading.trouble[1].find("memory.high"), std::string::npos);
  ASSERT_EQ(reading.limits.size(), 1U);
  EXPECT_EQ(reading.limits[0].used(), reading.limits[0].limit());
}

TEST(MemoryFixtures, ThisMachineCanBeRead) {
  const NodeMemory node = read_node_memory("/", "here");
  const NodeRoom room = room_of(node, {});
  if (room.numa.empty()) GTEST_SKIP() << "no memory to be seen here";
  for (const NumaRoom& numa : room.numa) {
    EXPECT_GT(numa.total, 0U);
    EXPECT_LE(numa.available, numa.total);
  }
  EXPECT_LE(node.ByteSizeLong(), 4096U);
}

}  // namespace
}  // namespace ananke
