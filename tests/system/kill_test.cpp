// kill -9 of a random rank at random moments, checkpoint writing included: the job ends everywhere, says why, and goes
// on from the newest complete checkpoint, every time; in the end the losses are those of a run that was left alone.
#include <gtest/gtest.h>

#include <random>

#include "runtime/base/error.h"
#include "runtime/checkpoint/folder.h"
#include "tests/system/command_process.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;

constexpr int ranks = 4;
// A checkpoint after every second step, so that a good part of all moments is within the writing of one.
constexpr const char* job_text = R"(
name: "killed"
run_dir: "set by the test"
model { vocab_size: 64 hidden_size: 32 num_hidden_layers: 2 num_attention_heads: 4 num_key_value_heads: 2 head_dim: 8
        num_experts: 4 num_experts_per_tok: 2 moe_intermediate_size: 32 tie_word_embeddings: true }
mesh { replicate: 1 shard: 4 }
training { steps: 100000 sequence_length: 32 rows_per_step: 8 rows_per_microbatch: 2 clip_norm: 1.0 }
data { generated { documents: 512 shortest: 8 longest: 64 branches: 4 } }
plugins { config { [ananke/ananke.plugin.AdamW] { lr: 1e-3 } } }
optimizer { match: ".*" use: "adamw" }
checkpoint { every_steps: 2 keep_last: 2 }
)";

class KillTest : public ::testing::Test {
 protected:
  KillTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ananke-kill-test.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    std::ofstream(folder / "job.textproto") << job_text;
  }
  ~KillTest() override { std::filesystem::remove_all(folder); }

  std::vector<std::string> run_words(const std::string& run, std::uint64_t steps) const {
    return {"run",   (folder / "job.textproto").string(),    "--run-dir", (folder / run).string(), "--resume",
            "--set", fmt::format("training.steps={}", steps)};
  }
  std::uint64_t newest_complete(const std::string& run) const {
    for (const FoundCheckpoint& found : find_checkpoints(folder / run)) {
      if (found.complete()) return found.step;
    }
    return 0;
  }
  // The loss of this step as it stands in the file: the same digits are the same bits.
  std::string loss_of(const std::string& run, std::uint64_t step) const {
    std::ifstream lines(folder / run / "steps.jsonl");
    std::string loss = "none";
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(fmt::format("{{\"step\":{{\"step\":{},", step))) continue;
      const auto at = line.find("\"loss\":");
      loss = line.substr(at, line.find(',', at) - at);
    }
    return loss;
  }

  std::filesystem::path folder;
};

TEST_F(KillTest, TwentyTimesAndGoesOnEveryTime) {
  std::mt19937 random(20);
  std::uint64_t before = 0;
  int while_writing = 0;
  for (int round = 0; round < 20; ++round) {
    CommandProcess job(run_words("killed", 100000), folder / "output");
    const int victim = static_cast<int>(random() % ranks);
    std::map<int, pid_t> workers;
    while (job.running() && (workers = job.workers()).size() < ranks) std::this_thread::sleep_for(milliseconds(1));
    // One in four within the start; the others once there is a checkpoint of this round, so that the job gets on.
    if (round % 4 != 3) {
      while (job.running() && newest_complete("killed") <= before) std::this_thread::sleep_for(milliseconds(2));
    }
    std::this_thread::sleep_for(milliseconds(random() % 300));
    ASSERT_TRUE(job.running()) << job.output();
    kill(workers.at(victim), SIGKILL);
    EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::worker_failed)) << job.output();
    for (const auto& [rank, pid] : workers) EXPECT_FALSE(is_alive(pid)) << "rank " << rank;
    const std::string output = job.output();
    EXPECT_NE(output.find(fmt::format("job failed: rank {} (", victim)), std::string::npos) << output;
    EXPECT_NE(output.find("was killed by signal 9 (SIGKILL)"), std::string::npos) << output;
    while_writing += output.find("(phase 'checkpoint'") != std::string::npos ? 1 : 0;
    EXPECT_GE(newest_complete("killed"), before);
    before = newest_complete("killed");
  }
  std::printf("killed 20 times, %d of them while a checkpoint was being written; at step %lu\n", while_writing,
              static_cast<unsigned long>(before));
  const std::uint64_t last = before + 5;
  CommandProcess rest(run_words("killed", last), folder / "output");
  EXPECT_EQ(rest.wait(), 0) << rest.output();
  CommandProcess straight(run_words("straight", last), folder / "output");
  EXPECT_EQ(straight.wait(), 0) << straight.output();
  for (std::uint64_t step = before + 1; step <= last; ++step) {
    EXPECT_NE(loss_of("killed", step), "none") << step;
    EXPECT_EQ(loss_of("killed", step), loss_of("straight", step)) << step;
  }
}

// While workers connect to the PMIx server, whose library may then never end by itself.
TEST_F(KillTest, WhileWorkersConnectIsToldAsEver) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    CommandProcess job(run_words(fmt::format("connecting-{}", round), 100000), folder / "output");
    std::map<int, pid_t> workers;
    while (job.running() && (workers = job.workers()).empty()) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(random() % 100));
    ASSERT_TRUE(job.running()) << job.output();
    const auto [victim, pid] = *workers.begin();
    kill(pid, SIGKILL);
    EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::worker_failed)) << job.output();
    EXPECT_NE(job.output().find(fmt::format("job failed: rank {} (", victim)), std::string::npos) << job.output();
  }
}

}  // namespace
}  // namespace ananke
