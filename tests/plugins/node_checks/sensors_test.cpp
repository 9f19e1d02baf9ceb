// Nothing passes when any one sensor is removed: of every check every file that it rests on, and every number of a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "runtime/health/gpu_reader.h"
#include "tests/plugins/node_checks/machine.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

// Files that a pattern with * for whole or parts of names stands for.
std::vector<fs::path> expand(const fs::path& root, const std::string& pattern) {
  std::vector<fs::path> found{root};
  for (const fs::path& part : fs::path(pattern)) {
    const std::string word = part.string();
    const auto star = word.find('*');
    std::vector<fs::path> next;
    for (const fs::path& folder : found) {
      if (star == std::string::npos) {
        if (fs::exists(folder / word)) next.push_back(folder / word);
        continue;
      }
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename();
        if (name.starts_with(word.substr(0, star)) && name.ends_with(word.substr(star + 1)))
          next.push_back(entry.path());
      }
    }
    found = std::move(next);
  }
  return found;
}

class Sensors : public ::testing::Test {
 protected:
  Sensors()
      : machine("gh200_cgroup", {"jupiter"}),
        site(load_site("jupiter")),
        checks(site_without_limit(), plugin.folders()) {}

  // So that mem.cgroup passes with a limit that there is.
  Site site_without_limit() {
    for (HealthThreshold& threshold : *site.mutable_health()->mutable_threshold()) {
      if (threshold.check() == "mem.cgroup") threshold.set_fail("50 GB");
    }
    return site;
  }
  CheckContext context_of(const CheckSet::Entry& entry, const std::filesystem::path& root, const NodeGpus& gpus) const {
    return {site,
            QUICK,
            root,
            "n1",
            Machine::user,
            Machine::process,
            gpus,
            nullptr,
            entry.spec.thresholds,
            entry.spec.deadline};
  }
  // By files: a command that is asked has none.
  std::vector<CheckSet::Entry> by_sensors() const {
    std::vector<CheckSet::Entry> entries;
    std::ranges::copy_if(checks.entries(), std::back_inserter(entries),
                         [](const CheckSet::Entry& entry) { return !entry.spec.id.starts_with("fs.quota."); });
    return entries;
  }
  HealthVerdict run(const CheckSet::Entry& entry, const NodeGpus& gpus) const {
    const CheckContext context = context_of(entry, machine.root(), gpus);
    return entry.check->run(entry.spec.id, context).verdict();
  }
  HealthVerdict run(const CheckSet::Entry& entry) const { return run(entry, read_node_gpus(machine.root())); }

  const NodeChecksFolder plugin;
  const Machine machine;
  Site site;
  const CheckSet checks;
};

TEST_F(Sensors, NoCheckPassesWithoutAnyOneOfItsFiles) {
  std::set<std::string> removed;
  for (const CheckSet::Entry& entry : by_sensors()) {
    ASSERT_EQ(run(entry), PASS) << entry.spec.id << ": it should pass on a healthy machine";
    ASSERT_FALSE(entry.spec.sensors.empty()) << entry.spec.id;
    for (const std::string& sensor : entry.spec.sensors) {
      const auto files = expand(machine.root(), sensor == "gpus" ? "nvml.textproto" : sensor);
      ASSERT_FALSE(files.empty()) << entry.spec.id << ": " << sensor;
      for (const fs::path& file : files) {
        const fs::path aside = machine.root() / "aside";
        fs::rename(file, aside);
        EXPECT_NE(run(entry), PASS) << entry.spec.id << " passes without " << file;
        fs::rename(aside, file);
        removed.insert(file);
      }
    }
  }
  EXPECT_GT(removed.size(), 100U);
}

TEST_F(Sensors, NoCheckPassesWhereThereIsNothing) {
  const TemporaryFolder empty;
  for (const CheckSet::Entry& entry : by_sensors()) {
    const NodeGpus gpus = read_node_gpus(empty.path());
    const CheckContext context = context_of(entry, empty.path(), gpus);
    const HealthVerdict verdict = entry.check->run(entry.spec.id, context).verdict();
    EXPECT_TRUE(verdict == UNKNOWN || verdict == FAIL) << entry.spec.id << ' ' << HealthVerdict_Name(verdict);
  }
}

TEST_F(Sensors, EveryNumberOfAGpuIsMissed) {
  // What names a GPU, or is read in messages alone.
  const std::set<std::string> names = {"index",        "problem", "unsupported",     "pci",  "name",
                                       "memory_total", "process", "pcie_generation", "minor"};
  const NodeGpus healthy = read_node_gpus(machine.root());
  ASSERT_EQ(healthy.gpu_size(), 4);
  int cleared = 0;
  for (int i = 0; i < GpuFacts::descriptor()->field_count(); ++i) {
    const auto* field = GpuFacts::descriptor()->field(i);
    if (names.contains(field->name())) continue;
    NodeGpus gpus = healthy;
    gpus.mutable_gpu(1)->GetReflection()->ClearField(gpus.mutable_gpu(1), field);
    bool missed = false;
    for (const CheckSet::Entry& entry : by_sensors()) missed = missed || run(entry, gpus) != PASS;
    EXPECT_TRUE(missed) << "nothing misses " << field->name();
    ++cleared;
  }
  EXPECT_GT(cleared, 15);
}

TEST_F(Sensors, WhatAGpuDoesNotHaveIsNotMissed) {
  NodeGpus gpus = read_node_gpus(machine.root());
  gpus.mutable_gpu(1)->clear_ecc_volatile();
  gpus.mutable_gpu(1)->add_unsupported("ecc_volatile");
  for (const CheckSet::Entry& entry : by_sensors()) EXPECT_EQ(run(entry, gpus), PASS) << entry.spec.id;
}

TEST_F(Sensors, ARecordOfGpusIsReadBack) {
  const NodeGpus gpus = read_node_gpus(machine.root());
  EXPECT_EQ(to_recorded_text(gpus), to_recorded_text(read_node_gpus(machine.root())));
  std::ofstream(machine.root() / "nvml.textproto") << "gpu { indx: 1 }";
  EXPECT_NAMES(read_node_gpus(machine.root()).problem(), "is no record of GPUs");
}

}  // namespace
}  // namespace ananke
