// What schedulers write into CUDA_VISIBLE_DEVICES, by how many tasks a node has: every rank gets the GPU it should, or
// one sentence says why not. The driver's part, which only says what a process then sees, is played by a few lines.
#include <gtest/gtest.h>

#include <optional>

#include "plugins/backend_cuda/device_choice.h"
#include "runtime/base/error.h"
#include "runtime/binding/visible_devices.h"

namespace ananke::cuda {
namespace {

using Texts = std::vector<const char*>;  // of each task; null: unset
using Uuids = std::vector<std::string>;

const Uuids node_gpus{"GPU-aa00", "GPU-bb11", "GPU-cc22", "GPU-dd33"};
const Uuids node_migs{"MIG-1", "MIG-2", "MIG-3", "MIG-4"};

// As CUDA does: all without the variable, else entry by entry up to the first that it does not know; of MIG instances
// one.
std::vector<VisibleDevice> seen_by_driver(const VisibleText& text) {
  std::vector<VisibleDevice> seen;
  const auto add = [&](const std::string& uuid) { seen.push_back({uuid, "NVIDIA H200"}); };
  if (!text.set) {
    for (const std::string& uuid : node_gpus) add(uuid);
    return seen;
  }
  for (const std::string& entry : text.entries) {
    if (std::ranges::find(node_migs, entry) != node_migs.end()) {
      add(entry);
      return seen;
    }
    const auto gpu = std::ranges::find_if(node_gpus, [&](const std::string& uuid) { return uuid.starts_with(entry); });
    const bool ordinal = entry.find_first_not_of("0123456789") == std::string::npos;
    if (ordinal && std::stoul(entry) < node_gpus.size()) {
      add(node_gpus[std::stoul(entry)]);
    } else if (gpu != node_gpus.end()) {
      add(*gpu);
    } else {
      return seen;
    }
  }
  return seen;
}

// UUIDs by local rank, or what is said instead.
struct Outcome {
  Uuids devices;
  std::string refusal;
};

Outcome bind(const Texts& texts) {
  Outcome outcome;
  std::vector<int> ranks;
  std::vector<std::string> processes;
  try {
    for (int task = 0; task < static_cast<int>(texts.size()); ++task) {
      const RankPlace place{.rank = task,
                            .ranks = static_cast<int>(texts.size()),
                            .local_rank = task,
                            .local_ranks = static_cast<int>(texts.size())};
      const VisibleText text = read_visible_devices(texts[static_cast<std::size_t>(task)]);
      const std::vector<VisibleDevice> seen = seen_by_driver(text);
      if (seen.empty() && text.entries.empty()) return {{}, "0 visible"};  // visible_devices() says so
      check_all_visible(text, seen.size());
      outcome.devices.push_back(seen[static_cast<std::size_t>(choose_device(seen, {}, place))].uuid);
      ranks.push_back(task);
      processes.push_back(fmt::format("n1, process {}", 100 + task));
    }
    refuse_shared_devices(ranks, outcome.devices, processes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config) << error.what();
    return {{}, error.what()};
  }
  return outcome;
}

Texts all_tasks(const char* text, int tasks = 4) { return Texts(static_cast<std::size_t>(tasks), text); }

void expect_bound(const Texts& texts, const Uuids& devices) {
  const Outcome outcome = bind(texts);
  EXPECT_EQ(outcome.refusal, "") << (texts[0] ? texts[0] : "unset");
  EXPECT_EQ(outcome.devices, devices) << (texts[0] ? texts[0] : "unset");
}
void expect_refused(const Texts& texts, const std::string& part) {
  const Outcome outcome = bind(texts);
  EXPECT_NE(outcome.refusal.find(part), std::string::npos)
      << (texts[0] ? texts[0] : "unset") << ": " << outcome.refusal;
}

TEST(VisibilityMatrix, FourTasksOnANode) {
  const Uuids reversed(node_gpus.rbegin(), node_gpus.rend());
  expect_bound(all_tasks(nullptr), node_gpus);
  expect_bound(all_tasks("0,1,2,3"), node_gpus);
  expect_bound(all_tasks("3,2,1,0"), reversed);
  expect_bound({"0", "1", "2", "3"}, node_gpus);
  expect_bound({"3", "2", "1", "0"}, reversed);
  expect_bound(all_tasks("GPU-aa00,GPU-bb11,GPU-cc22,GPU-dd33"), node_gpus);
  expect_bound({"GPU-dd33", "GPU-cc22", "GPU-bb11", "GPU-aa00"}, reversed);
  expect_bound(all_tasks("GPU-a,GPU-b,GPU-c,GPU-d"), node_gpus);  // CUDA takes the beginning of a UUID
  expect_bound({"MIG-1", "MIG-2", "MIG-3", "MIG-4"}, node_migs);
  expect_refused(all_tasks("0"), "rank 0 (n1, process 100) and rank 1 (n1, process 101) both have GPU-aa00");
  expect_refused({"0", "1", "2", "1"}, "rank 1 (n1, process 101) and rank 3 (n1, process 103) both have GPU-bb11");
  expect_refused(all_tasks("MIG-1,MIG-2,MIG-3,MIG-4"), "a process can use one MIG instance");
  expect_refused(all_tasks("0,1"), "rank 2 is the 2 of 4 ranks on its node, but its process sees 2 GPUs");
  expect_refused(all_tasks("0,1,2,7"), "CUDA sees 3 of them and stops at '7'");
  expect_refused(all_tasks("GPU-aa00,GPU-ee44"), "stops at 'GPU-ee44'");
}

TEST(VisibilityMatrix, OneTaskOnANodeTakesTheFirst) {
  expect_bound({nullptr}, {"GPU-aa00"});
  expect_bound({"0,1,2,3"}, {"GPU-aa00"});
  expect_bound({"2"}, {"GPU-cc22"});
  expect_bound({"3,2,1,0"}, {"GPU-dd33"});
  expect_bound({"GPU-bb11"}, {"GPU-bb11"});
  expect_bound({"MIG-3"}, {"MIG-3"});
  expect_refused({"7"}, "CUDA sees 0 of them and stops at '7'");
}

// "0 visible" is another thing than a device that is not there, and than nonsense.
TEST(VisibilityMatrix, NoneVisibleAndAbsurdTextsAreToldApart) {
  for (const int tasks : {1, 4}) {
    for (const char* text : {"", " ", "-1", "NoDevFiles"}) expect_refused(all_tasks(text, tasks), "0 visible");
    for (const char* text : {"unlimited", "0,x,2", "0,,1", "99999999999999999999", "all", "0-3", "0 1 2 3"}) {
      expect_refused(all_tasks(text, tasks), "is no device: write ordinals or UUIDs");
    }
    expect_refused(all_tasks("0,1,1", tasks), "names device 1 twice");
  }
}

}  // namespace
}  // namespace ananke::cuda
