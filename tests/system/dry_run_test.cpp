// `ananke run --dry-run`: tells what the run then does, refuses what it refuses, and leaves no trace.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "runtime/base/error.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/run_lock.h"
#include "tests/system/command_process.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

constexpr const char* job_text = R"(
run_dir: "set by the test"
model { vocab_size: 16 hidden_size: 8 num_hidden_layers: 1 num_attention_heads: 1
        num_experts: 2 num_experts_per_tok: 1 moe_intermediate_size: 4 }
training { steps: 2 sequence_length: 8 rows_per_step: 2 rows_per_microbatch: 1 }
data { generated { documents: 4 shortest: 4 longest: 8 branches: 2 } }
optimizer { use: "adamw" }
evaluation { held_out { name: "same" generated_documents: 2 rows: 3 } }
)";

class DryRunTest : public ::testing::Test {
 protected:
  DryRunTest() { folder_.write("job.textproto", job_text); }

  fs::path run_dir() const { return folder_.path() / run_; }
  int run(const std::vector<std::string>& more, const std::vector<std::string>& last = {}) {
    std::vector<std::string> words{"run", (folder_.path() / "job.textproto").string(), "--run-dir", run_dir().string()};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), last.begin(), last.end());
    CommandProcess job(words, outside_.path() / "output");
    const int code = job.wait();
    output_ = job.output();
    return code;
  }
  int dry(const std::vector<std::string>& more) {
    const auto before = snapshot();
    const int code = run(more, {"--dry-run"});
    EXPECT_EQ(snapshot(), before) << "it left a trace";
    return code;
  }
  // Every file and folder, with its size and time of change.
  std::map<std::string, std::pair<std::uintmax_t, fs::file_time_type>> snapshot() const {
    std::map<std::string, std::pair<std::uintmax_t, fs::file_time_type>> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      all[entry.path()] = {entry.is_regular_file() ? entry.file_size() : 0, entry.last_write_time()};
    }
    return all;
  }
  void expect_says(const std::string& text) const {
    EXPECT_NE(output_.find(text), std::string::npos) << text << " is not in\n" << output_;
  }
  // The dry run says what the run does, with the same code; then the sentence both end in.
  void expect_same_refusal(const std::vector<std::string>& more, ErrorKind kind, const std::string& text) {
    SCOPED_TRACE(text);
    EXPECT_EQ(dry(more), static_cast<int>(kind)) << output_;
    expect_says(text);
    EXPECT_EQ(output_.find("nothing was started"), std::string::npos) << output_;
    EXPECT_EQ(run(more), static_cast<int>(kind)) << output_;
    expect_says(text);
  }

  TemporaryFolder folder_, outside_;
  std::string run_ = "run";
  std::string output_;
};

TEST_F(DryRunTest, RefusesWhatTheRunRefusesWithTheSameCode) {
  expect_same_refusal({"--set", "optimizer[0].match=none_of_these"}, ErrorKind::config, "none_of_these");
  expect_same_refusal({"--ranks", "3"}, ErrorKind::config, "rows_per_step");
  const std::string store = folder_.write("no.h5", "not HDF5").string();
  expect_same_refusal({"--set", "evaluation.held_out[0]={name: \"x\" tokens: \"" + store + "\"}"}, ErrorKind::data,
                      "not an HDF5 file");
  expect_same_refusal({"--set", "evaluation.held_out[0].rows=-1"}, ErrorKind::config, "rows");
  run_ = "no.h5/run";
  expect_same_refusal({}, ErrorKind::resource, "cannot make the run folder");
  run_ = "run";
  fs::create_directory(run_dir());
  const RunLock lock(run_dir());
  EXPECT_EQ(run({"--dry-run"}), static_cast<int>(ErrorKind::config)) << output_;  // the lock itself changes by beats
  expect_says("is in use: process " + std::to_string(getpid()));
}

TEST_F(DryRunTest, TellsOfAPluginThatFailsOrCrashesAsTheRunDoes) {
  setenv("ANANKE_PLUGIN_PATH", ANANKE_BINARY_DIR "/tests/faulty_plugins", 1);
  const auto with = [&](const std::string& at, const std::string& fault) {
    return dry({"--set", "plugins.faulty_optimizer.at='" + at + "'", "--set",
                "plugins.faulty_optimizer.fault='" + fault + "'", "--set", "optimizer[0].use=faulty_optimizer"});
  };
  EXPECT_EQ(with("constructor", "segv"), static_cast<int>(ErrorKind::worker_failed)) << output_;
  expect_says("last words: ");
  expect_says("plugin 'faulty_optimizer'");
  expect_says("was ended by signal 11");
  EXPECT_EQ(with("states", "no name"), static_cast<int>(ErrorKind::plugin)) << output_;
  expect_says("plugin 'faulty_optimizer'");
  unsetenv("ANANKE_PLUGIN_PATH");
}

TEST_F(DryRunTest, PrintsThePlanThatTheRunThenFollows) {
  ASSERT_EQ(dry({"--ranks", "2"}), 0) << output_;
  EXPECT_FALSE(fs::exists(run_dir()));
  for (const char* text : {"is valid for 2 ranks", "placement on replicate 1 x shard 2",
                           "2 steps of 2 rows x 8 tokens: 16 tokens a step", "1 microbatch of 1 rows a rank",
                           "adamw for ", "after the last step: same (at most 3 rows)", "run, which would be made",
                           "at step 1, weights made from the seed", "dry run: nothing was started or written"}) {
    expect_says(text);
  }
  const std::size_t begin = output_.find("memory of one rank"), end = output_.find("\n\n", begin);
  ASSERT_NE(end, std::string::npos) << output_;
  const std::string memory = output_.substr(begin, end - begin);
  ASSERT_EQ(run({"--ranks", "2"}), 0) << output_;
  expect_says(memory);
}

TEST_F(DryRunTest, SaysWhatItWouldResumeFrom) {
  ASSERT_EQ(dry({"--resume"}), 0) << output_;
  expect_says("at step 1, since there is no checkpoint to resume from");
  ASSERT_EQ(run({}), 0) << output_;
  expect_same_refusal({}, ErrorKind::config, "holds checkpoints up to step 2");
  expect_same_refusal({"--resume", "--set", "model.hidden_size=16"}, ErrorKind::config, "model.hidden_size: 8 in the");
  ASSERT_EQ(dry({"--resume", "--set", "training.steps=3"}), 0) << output_;
  expect_says("after step 2 of 3, from " + (checkpoints_folder(run_dir()) / step_folder_name(2)).string());
  expect_says("training.steps: 2 before, 3 now");
  fs::remove(checkpoints_folder(run_dir()) / step_folder_name(2) / "COMPLETE");
  expect_same_refusal({"--resume"}, ErrorKind::checkpoint, "COMPLETE is missing");
}

}  // namespace
}  // namespace ananke
