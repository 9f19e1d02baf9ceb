// Memory of whole jobs: the plan that needs nothing, admission before anything is allocated, and what a run took.
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "ananke/memory.pb.h"
#include "runtime/base/error.h"
#include "runtime/memory/node_reader.h"
#include "runtime/memory/room.h"
#include "tests/runtime/memory/node_trees.h"
#include "tests/system/command_process.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

// Some tens of MiB a rank.
constexpr const char* job_text = R"(
name: "small"
run_dir: "set by the test"
model { vocab_size: 2048 hidden_size: 256 num_hidden_layers: 4 num_attention_heads: 4 num_key_value_heads: 2
        num_experts: 8 num_experts_per_tok: 2 moe_intermediate_size: 256 }
training { steps: 3 sequence_length: 256 rows_per_step: 4 }
data { generated { documents: 64 shortest: 4 longest: 300 branches: 2 } }
optimizer { use: "adamw" }
)";

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() { folder_.write("job.textproto", job_text); }

  fs::path run_dir() const { return folder_.path() / "run"; }
  int run(const std::vector<std::string>& more) {
    std::vector<std::string> words{"run", (folder_.path() / "job.textproto").string(), "--run-dir", run_dir().string()};
    words.insert(words.end(), more.begin(), more.end());
    CommandProcess job(words, folder_.path() / "output");
    const int code = job.wait();
    output_ = job.output();
    return code;
  }
  void expect_says(const std::string& text) const {
    EXPECT_NE(output_.find(text), std::string::npos) << text << " is not in\n" << output_;
  }
  // A site whose node is a recorded one, with as much of it kept back.
  std::string site(const std::string& tree, const std::string& reserve) {
    unpack_tree(tree, folder_.path() / tree);
    return folder_
        .write("site.textproto", "name: \"recorded\" memory { root: \"" + (folder_.path() / tree).string() +
                                     "\" reserve: \"" + reserve + "\" }")
        .string();
  }
  // What stands behind this name, line by line.
  static std::vector<double> values(const std::string& text, const std::string& name) {
    std::vector<double> found;
    for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
      at += name.size();
      found.push_back(std::strtod(text.c_str() + at, nullptr));
    }
    return found;
  }
  MemoryReport report() const {
    MemoryReport report;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text_of(run_dir() / "memory.json"), &report).ok());
    return report;
  }

  TemporaryFolder folder_;
  std::string output_;
};

TEST_F(MemoryTest, APolicyThatIsNoneIsRefused) {
  EXPECT_EQ(run({"--admission", "perhaps"}), static_cast<int>(ErrorKind::usage));
  expect_says("--admission perhaps is none of refuse, reduce_offload, use_spares, off");
  EXPECT_EQ(run({"--spares", "1"}), static_cast<int>(ErrorKind::config));
  expect_says("--spares 1: site 'local' has no Slurm (start: LOCAL)");
  EXPECT_FALSE(fs::exists(run_dir()));
}

TEST_F(MemoryTest, ThePlanIsPrintedAndNothingHappens) {
  EXPECT_EQ(run({"--ranks", "2", "--print-memory"}), 0) << output_;
  expect_says("small: 2 ranks, 2 on a node; planned for all of them");
  for (const char* purpose : {"memory of rank 0", "weights", "optimizer state", "block inputs", "checkpoint staging",
                              "shared outboxes", "process", "host memory of this machine, all 2 ranks on it: "}) {
    expect_says(purpose);
  }
  EXPECT_FALSE(fs::exists(run_dir()));
}

TEST_F(MemoryTest, AJobThatDoesNotFitIsRefusedBeforeItAllocates) {
  const std::string small = site("leak_150", "500 GiB");
  EXPECT_EQ(run({"--ranks", "2", "--site", small}), static_cast<int>(ErrorKind::resource)) << output_;
  expect_says("the job does not fit into the memory of its nodes");
  expect_says("NUMA node");
  expect_says("for the site's support:");
  expect_says("unattributed (nobody accounts for it)");
  EXPECT_EQ(text_of(run_dir() / "steps.jsonl"), "");
  EXPECT_EQ(run({"--ranks", "2", "--site", small, "--print-memory"}), 0);
  expect_says("all 2 ranks on it: DOES NOT FIT");
}

TEST_F(MemoryTest, OffGoesOnWithAWarning) {
  EXPECT_EQ(run({"--ranks", "2", "--site", site("no_meminfo", "0")}), static_cast<int>(ErrorKind::resource));
  expect_says("nobody can say whether the job fits into the memory of its nodes");
  expect_says("cannot be judged: node ");
  expect_says((folder_ / "no_meminfo/proc/meminfo").string() + " cannot be read");
  fs::remove_all(run_dir());
  EXPECT_EQ(run({"--ranks", "2", "--site", site("no_meminfo", "0"), "--admission", "off"}), 0) << output_;
  expect_says(
      "warning: memory.admission is OFF, and the job goes on although nobody can say whether it fits into memory:");
}

TEST_F(MemoryTest, WhatARunTookStandsBesideItsPlan) {
  for (const char* transport : {"SHARED_MEMORY", "GLOO"}) {
    fs::remove_all(run_dir());
    ASSERT_EQ(run({"--ranks", "4", "--set", std::string("plugins.backend_host.transport=") + transport, "--set",
                   "plugins.backend_host.threads=1"}),
              0)
        << output_;
    expect_says("of plan");
    const MemoryReport all = report();
    EXPECT_EQ(all.ranks(), 4U);
    const double planned = static_cast<double>(all.device_planned() + all.host_planned());
    const double taken = static_cast<double>(all.device_measured() + all.host_measured());
    EXPECT_NEAR(taken / planned, 1, 0.05) << transport << "\n" << output_;
  }
}

// On a recorded node that has room for some layers' inputs only, as one whose devices have memory of their own. Results
// are the same bits, whatever is moved.
TEST_F(MemoryTest, AsManyInputsAreKeptOnTheHostAsItHasRoomFor) {
  folder_.write("job.textproto", R"(
name: "offloads"
run_dir: "set by the test"
model { vocab_size: 64 hidden_size: 64 num_hidden_layers: 8 num_attention_heads: 4 num_key_value_heads: 2
        num_experts: 0 intermediate_size: 64 }
training { steps: 1 sequence_length: 32 rows_per_step: 2048 recompute: FULL }
data { generated { documents: 256 shortest: 16 longest: 128 branches: 2 } }
plugins { config { [ananke/ananke.plugin.SharingBackend] { over: "backend_host" as_device: true } } }
plugins { config { [ananke/ananke.plugin.ActivationOffload] { fraction: 1 } } }
optimizer { use: "adamw" }
)");
  setenv("ANANKE_PLUGIN_PATH", ANANKE_BINARY_DIR "/tests/sharing_plugins", 1);
  ASSERT_EQ(run({}), 0) << output_;
  const std::string all_steps = text_of(run_dir() / "steps.jsonl");
  const MemoryReport all = report();
  std::uint64_t inputs = 0, process = 0;
  for (const MemoryLine& line : all.line()) {
    if (line.purpose() == "block inputs (host)") inputs = line.planned();
    if (line.purpose() == "process") process = line.planned();
  }
  ASSERT_EQ(inputs, 7U * 2048 * 32 * 64 * 4);  // of all layers but the last
  // Two layers less than what is to come where a process has all of its own already, which may be less.
  const std::uint64_t room = all.host_planned() - process - 2 * inputs / 7;
  site("virtual_machine", "0");
  const NodeRoom node = room_of(read_node_memory(folder_ / "virtual_machine", "n1"), {});
  ASSERT_EQ(node.numa.size(), 1U);
  fs::remove_all(run_dir());
  const std::string tight = site("virtual_machine", std::to_string(node.numa[0].available - room) + " B");
  EXPECT_EQ(run({"--site", tight}), static_cast<int>(ErrorKind::resource)) << output_;
  expect_says("the job does not fit into the memory of its nodes");
  expect_says("that the site's memory.reserve keeps back");
  ASSERT_EQ(run({"--site", tight, "--admission", "reduce_offload"}), 0) << output_;
  unsetenv("ANANKE_PLUGIN_PATH");
  expect_says("memory.admission is REDUCE_OFFLOAD: 0.");
  expect_says(" instead of 1 of the layers' inputs are kept on the host");
  const std::string some_steps = text_of(run_dir() / "steps.jsonl");
  for (const char* name : {"\"loss\":", "\"gradient_norm\":"})
    EXPECT_EQ(values(some_steps, name), values(all_steps, name));
  const double moved = values(some_steps, "\"bytes_out\":").at(0), most = values(all_steps, "\"bytes_out\":").at(0);
  EXPECT_EQ(most, static_cast<double>(inputs));
  EXPECT_GT(moved, 0);
  EXPECT_LT(moved, most);
}

// The job of site/jupiter: 950 B parameters on 384 ranks, on any machine.
TEST_F(MemoryTest, TheYardstickFitsItsMachineWithItsStateAndInputsOnTheHost) {
  if (!fs::exists(ANANKE_BINARY_DIR "/lib/ananke/backend_cuda.so")) GTEST_SKIP() << "built without CUDA";
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"run", ANANKE_SOURCE_DIR "/site/jupiter/jobs/yardstick.textproto", "--site",
                                   ANANKE_SOURCE_DIR "/site/jupiter/site.textproto", "--print-memory"};
    words.insert(words.end(), more.begin(), more.end());
    CommandProcess command(words, folder_.path() / "output");
    EXPECT_EQ(command.wait(), 0) << command.output();
    output_ = command.output();
  };
  plan({});
  expect_says("yardstick: 384 ranks, 4 on a node");
  expect_says("block inputs (host)                     host  54.8 GiB");  // of 73 of 74 layers; 55.5 GiB of all
  // 27.7 GiB of state.
  expect_says("optimizer state (host)" + std::string(18, ' ') + "host  9.25 GiB");
  expect_says("gradients (host)" + std::string(24, ' ') + "host  9.22 GiB");
  expect_says("weights (host)" + std::string(26, ' ') + "host  9.22 GiB");
  expect_says("of a rank: fits into 95.0 GiB");
  expect_says("of a rank: fits into 108 GiB");
  plan({"--set", "plugins.activation_offload.fraction=0"});
  expect_says("of a rank: DOES NOT FIT into 95.0 GiB");
}

}  // namespace
}  // namespace ananke
