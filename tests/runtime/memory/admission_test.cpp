// Verdicts on recorded nodes, and what they say.
#include "runtime/memory/admission.h"

#include <gtest/gtest.h>

#include "runtime/memory/cgroup.h"
#include "runtime/memory/node_reader.h"
#include "tests/runtime/memory/node_trees.h"

namespace ananke {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

struct Places {
  std::string node = "n1";
  std::vector<std::vector<std::uint32_t>> numa;  // of each rank; empty: anywhere
};

// Ranks of one node, `each` bytes a rank.
std::vector<RankNeed> needs_on(const std::string& tree_name, std::uint64_t each, const Places& places,
                               std::uint32_t first_rank = 0) {
  const NodeTree tree(tree_name);
  std::vector<RankNeed> needs;
  for (const auto& numa : places.numa) {
    RankNeed& need = needs.emplace_back();
    need.set_rank(first_rank + static_cast<std::uint32_t>(needs.size()) - 1);
    need.set_node(places.node);
    need.set_host_bytes(each);
    for (const std::uint32_t id : numa) need.add_numa(id);
    for (CgroupLimit& limit : read_cgroup_limits(tree.root()).limits) *need.add_cgroup() = std::move(limit);
  }
  *needs.front().mutable_memory() = read_node_memory(tree.root(), places.node);
  add_memory_holders(tree.root(), *needs.front().mutable_memory());
  return needs;
}

const Places four{.numa = {{0}, {1}, {2}, {3}}};

std::string refusal(const std::vector<RankNeed>& needs, const RoomOptions& options = {}) {
  return refusal_text(judge_admission(needs, options), needs, options);
}

void expect_says(const std::string& text, const std::vector<const char*>& all) {
  for (const char* part : all) EXPECT_NE(text.find(part), std::string::npos) << part << "\nin:" << text;
}

TEST(Admission, NothingKnownIsNoPermission) {
  std::vector<RankNeed> needs(1);
  needs[0].set_node("n1");
  EXPECT_FALSE(judge_admission(needs, {}).fits());
  expect_says(refusal(needs), {"cannot be judged: node n1: none of its ranks says what memory it has"});
  needs = needs_on("no_meminfo", 1, {.numa = {{}}});
  EXPECT_FALSE(judge_admission(needs, {}).fits());
  expect_says(refusal(needs), {"cannot be judged: node n1: ", "/proc/meminfo cannot be read"});
  needs = needs_on("damaged", 1, {.numa = {{0}, {1}}});
  EXPECT_FALSE(judge_admission(needs, {}).fits());
  expect_says(refusal(needs), {"meminfo of NUMA node 1 has no MemTotal and MemFree"});
  EXPECT_TRUE(judge_admission({}, {}).fits());  // of nobody
}

TEST(Admission, AHealthyNodeTakesWhatAJobCanUse) {
  EXPECT_TRUE(judge_admission(needs_on("gh200_healthy", 108 * gib, four), {}).fits());
  EXPECT_TRUE(judge_admission(needs_on("gh200_cache_hog", 108 * gib, four), {}).fits());
}

TEST(Admission, MemoryOfGpusDoesNotHelp) {  // 476 GiB of the host, 380 of GPUs
  const auto needs = needs_on("gh200_healthy", 125 * gib, four);
  const AdmissionVerdict verdict = judge_admission(needs, {});
  ASSERT_EQ(verdict.shortages.size(), 4U);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(verdict.shortages[i].numa, std::vector<std::uint32_t>{i});
    EXPECT_EQ(verdict.shortages[i].ranks, std::vector<std::uint32_t>{i});
  }
}

TEST(Admission, ALeakIsNamedWithATicket) {
  const auto needs = needs_on("gh200_leak", 108 * gib, four);
  const AdmissionVerdict verdict = judge_admission(needs, {});
  ASSERT_EQ(verdict.shortages.size(), 1U);
  EXPECT_FALSE(verdict.host_fits());
  expect_says(refusal(needs),
              {"node n1, NUMA node 2: rank 2 needs 108 GiB, ", " are there: ", " short",
               "unattributed (nobody accounts for it) 59.9 GiB", "leave the node out and send the ticket",
               "for the site's support:\nSubject: node n1: memory that is neither free nor accounted"});
}

TEST(Admission, HoldersAreNamed) {
  const Places two{.numa = {{0}, {0}}};
  expect_says(refusal(needs_on("shmem_hog", 60 * gib, two)),
              {"ranks 0, 1 need 120 GiB", "shared memory (/dev/shm, tmpfs) 180 GiB", "remove what earlier jobs left"});
  expect_says(refusal(needs_on("huge_pages", 60 * gib, two)),
              {"huge pages that are reserved 144 GiB", "vm.nr_hugepages"});
  expect_says(refusal(needs_on("dirty_cache", 60 * gib, two)),
              {"page cache that cannot be dropped (dirty, locked) 70.0 GiB"});
  expect_says(refusal(needs_on("leftover_process", 60 * gib, two)),
              {"processes 90.0 GiB", "end the processes", "process 4711 (python3) of user 1234 85.5 GiB"});
  EXPECT_EQ(refusal(needs_on("shmem_hog", 60 * gib, two)).find("Subject:"), std::string::npos);  // nothing is missing
}

TEST(Admission, RanksOfANodeAreTakenTogether) {
  EXPECT_TRUE(judge_admission(needs_on("virtual_machine", 10 * gib, {.numa = {{0}, {0}}}), {}).fits());
  EXPECT_FALSE(judge_admission(needs_on("virtual_machine", 10 * gib, {.numa = {{0}, {0}, {0}}}), {}).fits());
  EXPECT_TRUE(
      judge_admission(needs_on("virtual_machine", 10 * gib, {.numa = {{0}, {0}, {0}}}), {.node_bytes = 64 * gib})
          .fits());
}

TEST(Admission, RanksThatShareNumaNodesShareWhatTheyHave) {
  // 61 GiB each of eight NUMA nodes. Two ranks anywhere in {0, 1}, one bound to 0.
  EXPECT_TRUE(judge_admission(needs_on("epyc_nps4", 40 * gib, {.numa = {{0, 1}, {0, 1}, {0}}}), {}).fits());
  const auto needs = needs_on("epyc_nps4", 41 * gib, {.numa = {{0, 1}, {0, 1}, {0}, {4}}});
  const AdmissionVerdict verdict = judge_admission(needs, {});
  ASSERT_EQ(verdict.shortages.size(), 1U);
  EXPECT_EQ(verdict.shortages[0].numa, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(verdict.shortages[0].ranks, (std::vector<std::uint32_t>{0, 1, 2}));
  expect_says(refusal(needs), {"NUMA nodes 0, 1: ranks 0, 1, 2 need 123 GiB"});
  // Ranks that may go anywhere do not fill a NUMA node twice.
  EXPECT_TRUE(judge_admission(needs_on("epyc_nps4", 115 * gib, {.numa = {{}, {}, {}, {}}}), {}).fits());
  EXPECT_FALSE(judge_admission(needs_on("epyc_nps4", 125 * gib, {.numa = {{}, {}, {}, {}}}), {}).fits());
}

TEST(Admission, ControlGroupsLimit) {
  const Places two{.numa = {{0}, {0}}};
  EXPECT_TRUE(judge_admission(needs_on("cgroup_v2", 46 * gib, two), {}).fits());  // 100 - (30 - 24) = 94
  const auto needs = needs_on("cgroup_v2", 48 * gib, two);
  const AdmissionVerdict verdict = judge_admission(needs, {});
  ASSERT_EQ(verdict.shortages.size(), 1U);
  expect_says(refusal(needs),
              {"control group /system.slice/slurmstepd.scope/job_77 (memory.max 100 GiB): ranks 0, 1 need "
               "96.0 GiB, 94.0 GiB are there: 2.00 GiB short",
               "--mem=0"});
  EXPECT_TRUE(judge_admission(needs_on("cgroup_v1", 27 * gib, two), {}).fits());  // 60 - (12 - 8) = 56
  EXPECT_FALSE(judge_admission(needs_on("cgroup_v1", 29 * gib, two), {}).fits());
}

TEST(Admission, ALimitOfEachRankIsNotThatOfAll) {
  auto needs = needs_on("cgroup_v2", 60 * gib, {.numa = {{0}, {0}}});
  for (RankNeed& need : needs) need.mutable_cgroup(0)->set_path("/job/task_" + std::to_string(need.rank()));
  EXPECT_TRUE(judge_admission(needs, {}).fits());
}

TEST(Admission, EveryNodeIsJudgedByItsOwn) {
  auto needs = needs_on("gh200_healthy", 108 * gib, four);
  for (int i = 0; i < 5; ++i) {
    Places other = four;
    other.node = "bad" + std::to_string(i);
    for (RankNeed& need : needs_on("gh200_leak", 108 * gib, other, 4U * static_cast<std::uint32_t>(i + 1)))
      needs.push_back(std::move(need));
  }
  const AdmissionVerdict verdict = judge_admission(needs, {});
  ASSERT_EQ(verdict.shortages.size(), 5U);
  expect_says(refusal(needs), {"node bad0, NUMA node 2: rank 6 needs", "node bad2, NUMA node 2: rank 14 needs",
                               "and on bad3, bad4", "Subject: node bad0"});
}

TEST(Admission, DevicesAreComparedToo) {
  auto needs = needs_on("gh200_healthy", 50 * gib, four);
  for (RankNeed& need : needs) {
    need.set_device_bytes(90 * gib);
    need.set_device_free(94 * gib);
    need.set_device("GPU-" + std::to_string(need.rank()));
  }
  EXPECT_TRUE(judge_admission(needs, {}).fits());
  needs[3].set_device_free(60 * gib);
  const AdmissionVerdict verdict = judge_admission(needs, {});
  ASSERT_EQ(verdict.shortages.size(), 1U);
  EXPECT_TRUE(verdict.host_fits());
  expect_says(refusal(needs), {"node n1, device GPU-3: rank 3 needs 90.0 GiB, 60.0 GiB are there"});
}

TEST(Admission, CacheInTheMemoryOfGpusIsAWarning) {
  const auto needs = needs_on("gh200_cache_on_devices", 50 * gib, four);
  const AdmissionVerdict verdict = judge_admission(needs, {});
  EXPECT_TRUE(verdict.fits());
  ASSERT_EQ(verdict.warnings.size(), 1U);
  expect_says(verdict.warnings[0], {"node n1: 80.0 GiB of the devices' memory is page cache", "R570"});
}

TEST(Admission, CpusWithoutMemoryTakeItElsewhere) {
  EXPECT_TRUE(judge_admission(needs_on("offline_node", 100 * gib, {.numa = {{2}}}), {}).fits());
  EXPECT_FALSE(judge_admission(needs_on("offline_node", 130 * gib, {.numa = {{2}}}), {}).fits());
}

TEST(Admission, TheLargestFractionThatFitsIsFound) {
  int asked = 0;
  const auto below = [&](double limit) {
    return [&asked, limit](double fraction) {
      ++asked;
      return fraction <= limit;
    };
  };
  EXPECT_EQ(largest_fraction(0.8, 74, below(1)), 0.8);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(largest_fraction(1, 74, below(-1)), std::nullopt);
  asked = 0;
  EXPECT_EQ(largest_fraction(1, 74, below(0.5)), 37.0 / 74);
  EXPECT_LE(asked, 9);
  EXPECT_EQ(largest_fraction(1, 74, below(0.49)), 36.0 / 74);
  EXPECT_EQ(largest_fraction(1, 1, below(0.9)), 0.0);
  EXPECT_EQ(largest_fraction(0.25, 8, below(0.2)), 1.0 / 8);
}

}  // namespace
}  // namespace ananke
