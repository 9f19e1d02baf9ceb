// `ananke run` as a person meets it: refusals, signals, a worker that stops answering.
#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "runtime/checkpoint/folder.h"
#include "tests/patience.h"
#include "tests/system/command_process.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;

constexpr const char* job_text = R"(
name: "run"
run_dir: "set by the test"
model { vocab_size: 64 hidden_size: 32 num_hidden_layers: 2 num_attention_heads: 4 num_key_value_heads: 2 head_dim: 8
        num_experts: 4 num_experts_per_tok: 2 moe_intermediate_size: 32 tie_word_embeddings: true }
mesh { replicate: 1 shard: 4 }
training { steps: 100000 sequence_length: 32 rows_per_step: 8 rows_per_microbatch: 2 }
data { generated { documents: 512 shortest: 8 longest: 64 branches: 4 } }
optimizer { match: ".*" use: "adamw" }
)";

class RunTest : public ::testing::Test {
 protected:
  RunTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ananke-run-test.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    std::ofstream(folder / "job.textproto") << job_text;
  }
  ~RunTest() override { std::filesystem::remove_all(folder); }

  std::vector<std::string> words(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"run", (folder / "job.textproto").string(), "--run-dir", (folder / "run").string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static bool says(const CommandProcess& job, const std::string& text) {
    return job.output().find(text) != std::string::npos;
  }
  // It trains: the console has its second step.
  static bool wait_for_steps(CommandProcess& job) {
    while (job.running() && !says(job, "step      2/") && !says(job, " 2/100000")) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    return job.running();
  }

  static void wait_for_end(const std::map<int, pid_t>& workers) {
    for (const auto& [rank, pid] : workers) {
      EXPECT_TRUE(eventually([&] { return !is_alive(pid); })) << "rank " << rank;
    }
  }
  void give_folder_to_another() const {
    const std::filesystem::path lock = folder / "run" / "launcher.lock";
    std::ofstream(lock.string() + ".new")
        << "host elsewhere\nprocess 77\nsince 2026-01-01T00:00:00Z\ntoken 0123456789\n";
    std::filesystem::rename(lock.string() + ".new", lock);
  }

  std::filesystem::path folder;
};

TEST_F(RunTest, RefusesWhatIsNoJobBeforeAnythingIsMade) {
  CommandProcess none({"run"}, folder / "output");
  EXPECT_EQ(none.wait(), 2) << none.output();
  CommandProcess missing({"run", "/does/not/exist.textproto"}, folder / "output");
  EXPECT_EQ(missing.wait(), 3) << missing.output();
  CommandProcess wrong(words({"--set", "model.hiden_size=8"}), folder / "output");
  EXPECT_EQ(wrong.wait(), 3) << wrong.output();
  EXPECT_TRUE(says(wrong, "hidden_size")) << wrong.output();
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_F(RunTest, AWorkerWithoutALauncherSaysHowItIsStarted) {
  CommandProcess bare({"worker"}, folder / "output");
  EXPECT_EQ(bare.wait(), 2);
  EXPECT_TRUE(says(bare, "start the job with `ananke run`")) << bare.output();
}

TEST_F(RunTest, AnInterruptStopsWithACheckpointAndTheFolderIsKept) {
  CommandProcess job(words(), folder / "output");
  ASSERT_TRUE(wait_for_steps(job)) << job.output();
  CommandProcess second(words({"--resume"}), folder / "second");
  EXPECT_EQ(second.wait(), 3);
  EXPECT_TRUE(says(second, " is in use: process " + std::to_string(job.pid()) + " on ")) << second.output();
  const std::map<int, pid_t> workers = job.workers();
  EXPECT_EQ(workers.size(), 4u);
  EXPECT_EQ(text_of("/proc/" + std::to_string(workers.at(0)) + "/cmdline").rfind(ANANKE_BINARY_DIR "/bin/ananke", 0),
            0u);
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::interrupted)) << job.output();
  const auto found = find_checkpoints(folder / "run");
  ASSERT_FALSE(found.empty()) << job.output();
  EXPECT_TRUE(found.front().complete()) << found.front().problem;
  EXPECT_TRUE(says(job, "--resume")) << job.output();
  for (const auto& [rank, pid] : workers) EXPECT_FALSE(is_alive(pid)) << "rank " << rank;

  CommandProcess again(words(), folder / "output");
  EXPECT_EQ(again.wait(), 3);
  EXPECT_TRUE(says(again, "holds checkpoints up to step")) << again.output();
}

TEST_F(RunTest, ASignalToOneWorkerStopsAll) {
  CommandProcess job(words(), folder / "output");
  ASSERT_TRUE(wait_for_steps(job)) << job.output();
  kill(job.workers().at(2), SIGUSR1);
  EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::interrupted)) << job.output();
  EXPECT_TRUE(says(job, "rank 2 received SIGUSR1")) << job.output();
}

TEST_F(RunTest, AStoppedWorkerEndsTheJobByItsSilence) {
  CommandProcess job(words(), folder / "output");
  ASSERT_TRUE(wait_for_steps(job)) << job.output();
  const std::map<int, pid_t> workers = job.workers();
  kill(workers.at(1), SIGSTOP);
  EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::stalled)) << job.output();
  EXPECT_TRUE(says(job, "job failed: rank 1 (")) << job.output();
  EXPECT_TRUE(says(job, "its process is stopped (SIGSTOP")) << job.output();
  for (const auto& [rank, pid] : workers) EXPECT_FALSE(is_alive(pid)) << "rank " << rank;
}

// As a launcher on another machine leaves it that found this one silent.
TEST_F(RunTest, ALauncherThatHasLostItsFolderEndsTheJob) {
  CommandProcess job(words(), folder / "output");
  ASSERT_TRUE(wait_for_steps(job)) << job.output();
  give_folder_to_another();
  EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::checkpoint)) << job.output();
  EXPECT_TRUE(says(job, "was taken over by process 77 on elsewhere at 2026-01-01T00:00:00Z")) << job.output();
  EXPECT_TRUE(find_checkpoints(folder / "run").empty());
  EXPECT_NE(text_of(folder / "run" / "launcher.lock").find("process 77"), std::string::npos);
}

TEST_F(RunTest, WorkersOfAStoppedLauncherEndByThemselvesOnceTheFolderIsAnothers) {
  std::ofstream(folder / "site.textproto") << R"(name: "short" start: LOCAL deadlines { exchange: "6s" step: "15s" })";
  CommandProcess job(words({"--site", (folder / "site.textproto").string()}), folder / "output");
  ASSERT_TRUE(wait_for_steps(job)) << job.output();
  const std::map<int, pid_t> workers = job.workers();
  kill(job.pid(), SIGSTOP);
  give_folder_to_another();
  wait_for_end(workers);
  EXPECT_TRUE(find_checkpoints(folder / "run").empty());
  EXPECT_NE(text_of(folder / "run" / "logs" / "rank-0.log").find("is held by process 77 on elsewhere"),
            std::string::npos);
  kill(job.pid(), SIGCONT);
  EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::checkpoint)) << job.output();
}

// The last checkpoint is waited for, but not for ever.
TEST_F(RunTest, ACheckpointWhoseWritingHangsEndsTheJobInTimeAndIsNamed) {
  std::ofstream(folder / "site.textproto") << R"(name: "short" start: LOCAL deadlines { step: "10s" })";
  CommandProcess job(words({"--site", (folder / "site.textproto").string(), "--set", "training.steps=30", "--set",
                            "checkpoint.every_steps=20"}),
                     folder / "output",
                     {"LD_PRELOAD=" ANANKE_BINARY_DIR "/tests/libfile_faults.so",
                      "ASAN_OPTIONS=verify_asan_link_order=0", "ANANKE_FILE_FAULT=sync 0 step-00000030.partial"});
  EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::stalled)) << job.output();
  EXPECT_TRUE(says(job, "made no progress for")) << job.output();
  EXPECT_TRUE(says(job, "(phase 'checkpoint', step 30)")) << job.output();
  EXPECT_TRUE(says(job, "a checkpoint was being written and is not complete: step-00000030.partial.")) << job.output();
  EXPECT_TRUE(says(job, "to go on from the newest checkpoint (step 20): " ANANKE_BINARY_DIR "/bin/ananke run"))
      << job.output();
  CommandProcess again(words({"--resume", "--set", "training.steps=30"}), folder / "output");
  EXPECT_EQ(again.wait(), 0) << again.output();
  EXPECT_TRUE(says(again, "resumed from")) << again.output();
  EXPECT_EQ(find_checkpoints(folder / "run").front().step, 30u);
}

TEST_F(RunTest, AKilledLauncherLeavesNoWorkerAndTheFolderCanBeTakenOver) {
  CommandProcess job(words(), folder / "output");
  ASSERT_TRUE(wait_for_steps(job)) << job.output();
  const std::map<int, pid_t> workers = job.workers();
  kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 1000 + SIGKILL);
  wait_for_end(workers);
  CommandProcess again(words({"--resume", "--set", "training.steps=3"}), folder / "output");
  EXPECT_EQ(again.wait(), 0) << again.output();
}

}  // namespace
}  // namespace ananke
