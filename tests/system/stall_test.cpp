// A job that stands still in the middle of its training: long before any fixed deadline it is told who, where and in
// which call, with stacks; a worker that is asked by hand gives its stacks and goes on.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "runtime/base/error.h"
#include "tests/patience.h"
#include "tests/system/command_process.h"

namespace ananke {
namespace {

constexpr const char* job_text = R"(
name: "stall"
run_dir: "set by the test"
model { vocab_size: 64 hidden_size: 16 num_hidden_layers: 1 num_attention_heads: 2 num_key_value_heads: 2 head_dim: 8
        num_experts: 4 num_experts_per_tok: 2 moe_intermediate_size: 16 tie_word_embeddings: true }
mesh { replicate: 1 shard: 2 }
training { steps: 100000 sequence_length: 16 rows_per_step: 4 }
data { generated { documents: 64 shortest: 8 longest: 32 branches: 4 } }
stalls { factor: 5 least: "1s" steps: 4 stacks: "30s" }
)";

class StallTest : public ::testing::Test {
 protected:
  StallTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ananke-stall-test.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    setenv("ANANKE_PLUGIN_PATH", ANANKE_BINARY_DIR "/tests/faulty_plugins", 1);
  }
  ~StallTest() override { std::filesystem::remove_all(folder); }

  std::vector<std::string> words(const std::string& plugins, const std::vector<std::string>& more = {}) const {
    std::ofstream(folder / "job.textproto") << job_text << plugins;
    std::ofstream(folder / "site.textproto") << "name: \"test\" start: LOCAL deadlines { heartbeat: \"5s\" }";
    std::vector<std::string> all{"run",    (folder / "job.textproto").string(), "--run-dir", (folder / "run").string(),
                                 "--site", (folder / "site.textproto").string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string log_of(int rank) const {
    std::ifstream file(folder / "run" / "logs" / fmt::format("rank-{}.log", rank));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::filesystem::path folder;
};

TEST_F(StallTest, IsNamedWithItsItemCallAndStacksLongBeforeTheDeadlineOfAStep) {
  CommandProcess job(words("plugins { config { [ananke/ananke.plugin.FaultyOptimizer] "
                           "{ at: 'update' fault: 'hang' rank: 1 after: 20000 } } }\n"
                           "optimizer { match: '.*' use: 'faulty_optimizer' }\n"),
                     folder / "output");
  EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::stalled)) << job.output();
  const std::string said = job.output();
  const auto says = [&](const std::string& text) { return said.find(text) != std::string::npos; };
  EXPECT_TRUE(says("job failed: rank 1 (")) << said;
  EXPECT_TRUE(says("(a step usually takes ")) << said;
  EXPECT_TRUE(says(" inside optimizer plugin 'faulty_optimizer'")) << said;
  EXPECT_TRUE(says(", in update (phase 'step', step ")) << said;
  EXPECT_TRUE(says(", item ")) << said;
  EXPECT_TRUE(says("where the others are:\n    rank 0: step ")) << said;
  EXPECT_TRUE(says("threads of rank 1 ")) << said;
  EXPECT_TRUE(says("misbehave(")) << said;
  EXPECT_NE(log_of(0).find("stacks of all threads"), std::string::npos) << "the other rank's, in its log";
}

TEST_F(StallTest, AFactorBelowTwoIsRefusedBeforeAnythingIsMade) {
  CommandProcess job(words("optimizer { match: '.*' use: 'adamw' }\n", {"--set", "stalls.factor=1"}),
                     folder / "output");
  EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::config));
  EXPECT_NE(job.output().find("stalls.factor of the job is 1"), std::string::npos) << job.output();
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_F(StallTest, AWorkerThatIsSentQuitWritesItsStacksAndGoesOn) {
  CommandProcess job(words("optimizer { match: '.*' use: 'adamw' }\n", {"--set", "training.steps=100000"}),
                     folder / "output");
  while (job.running() && job.output().find("/100000") == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::map<int, pid_t> workers = job.workers();
  ASSERT_EQ(workers.size(), 2u) << job.output();
  kill(workers.at(1), SIGQUIT);
  EXPECT_TRUE(eventually([&] { return log_of(1).find("stacks of all threads") != std::string::npos; })) << log_of(1);
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::interrupted)) << job.output();
  EXPECT_EQ(log_of(0).find("stacks of all threads"), std::string::npos);
}

}  // namespace
}  // namespace ananke
