// What a run leaves behind must not show that it was killed while it wrote checkpoints, nor that its newest checkpoint
// was damaged: with replicas, and evaluations in between, every record is that of a run that was left alone.
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <random>

#include "ananke/telemetry.pb.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/folder.h"
#include "tests/system/command_process.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;

constexpr int ranks = 4;
constexpr const char* job_text = R"(
name: "killed while writing"
run_dir: "set by the test"
model { vocab_size: 64 hidden_size: 32 num_hidden_layers: 2 num_attention_heads: 2 num_key_value_heads: 1 head_dim: 16
        num_experts: 4 num_experts_per_tok: 2 moe_intermediate_size: 16 }
mesh { replicate: 2 shard: 2 }
training { steps: 60 sequence_length: 32 rows_per_step: 8 rows_per_microbatch: 1 }
data { generated { documents: 128 shortest: 8 longest: 64 } }
optimizer { use: "adamw" }
checkpoint { every_steps: 2 keep_last: 2 }
evaluation { every_steps: 20 held_out { name: "eight" generated_documents: 8 }
                              held_out { name: "row" generated_documents: 2 rows: 1 } }
)";

// steps.jsonl without what depends on time.
struct Records {
  std::map<std::uint64_t, std::vector<double>> steps;
  std::map<std::pair<std::uint64_t, std::string>, double> evaluations;  // by step and set
  std::uint64_t last_resume = 0;
  bool operator==(const Records& other) const { return steps == other.steps && evaluations == other.evaluations; }
};

Records records_of(const std::filesystem::path& run_dir) {
  Records records;
  std::ifstream stream(run_dir / "steps.jsonl");
  for (std::string text; std::getline(stream, text);) {
    TelemetryLine line;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &line).ok() || stream.peek() == EOF) << text;
    if (line.has_step()) {
      const StepRecord& step = line.step();
      const std::vector<double> values{step.loss(), step.gradient_norm(),
                                       static_cast<double>(step.total_valid_tokens())};
      EXPECT_TRUE(records.steps.emplace(step.step(), values).second) << "step " << step.step() << " stands there twice";
    } else if (line.has_evaluation()) {
      records.evaluations[{line.evaluation().step(), line.evaluation().held_out()}] = line.evaluation().loss();
    } else if (line.event().kind() == RunEvent::RESUMED) {
      records.last_resume = line.event().step();
    }
  }
  return records;
}

class KillResumeTest : public ::testing::Test {
 protected:
  KillResumeTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ananke-kill-resume.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    std::ofstream(folder / "job.textproto") << job_text;
  }
  ~KillResumeTest() override { std::filesystem::remove_all(folder); }

  std::vector<std::string> run_words(const std::string& run, int steps) const {
    return {"run",   (folder / "job.textproto").string(),    "--run-dir", (folder / run).string(), "--resume",
            "--set", fmt::format("training.steps={}", steps)};
  }
  Records straight_run(int steps) const {
    CommandProcess job(run_words("straight", steps), folder / "output");
    EXPECT_EQ(job.wait(), 0) << job.output();
    const Records records = records_of(folder / "straight");
    EXPECT_EQ(records.steps.size(), static_cast<std::size_t>(steps));
    return records;
  }
  std::uint64_t newest_complete(const std::string& run) const {
    for (const FoundCheckpoint& found : find_checkpoints(folder / run)) {
      if (found.complete()) return found.step;
    }
    return 0;
  }
  bool is_writing(const std::string& run, std::uint64_t step) const {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(checkpoints_folder(folder / run), error), end;
         !error && entry != end; entry.increment(error)) {
      if (entry->path().filename().string().starts_with(step_folder_name(step) + ".partial.")) return true;
    }
    return false;
  }

  std::filesystem::path folder;
};

TEST_F(KillResumeTest, KilledWhileCheckpointsAreWrittenEveryRecordIsThatOfAStraightRun) {
  constexpr int steps = 60;
  const Records expected = straight_run(steps);
  ASSERT_EQ(expected.evaluations.size(), 6u);
  std::mt19937 random(5);
  for (int round = 0; round < 8; ++round) {
    const std::uint64_t before = newest_complete("killed");
    // Not the first checkpoint after a resume, so that the run gets on. It stands still there, in another operation in
    // each round, so that it is not past its end before it is killed, however slow this process is to see it.
    const char* operations[] = {"write", "sync", "close", "rename"};
    const std::string fault =
        fmt::format("ANANKE_FILE_FAULT={} 0 {}.partial", operations[round % 4], step_folder_name(before + 6));
    CommandProcess job(run_words("killed", steps), folder / "output",
                       {"LD_PRELOAD=" ANANKE_BINARY_DIR "/tests/libfile_faults.so", fault});
    while (job.running() && !is_writing("killed", before + 6)) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(random() % 15));
    ASSERT_TRUE(job.running()) << job.output();
    kill(job.workers().at(static_cast<int>(random() % ranks)), SIGKILL);
    EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::worker_failed)) << job.output();
    EXPECT_EQ(newest_complete("killed"), before + 4);
    EXPECT_EQ(records_of(folder / "killed").last_resume, before);
    for (const auto& found : find_checkpoints(folder / "killed")) EXPECT_TRUE(found.complete()) << found.problem;
  }
  CommandProcess rest(run_words("killed", steps), folder / "output");
  EXPECT_EQ(rest.wait(), 0) << rest.output();
  EXPECT_EQ(records_of(folder / "killed"), expected);
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints_folder(folder / "killed"))) {
    EXPECT_FALSE(is_leftover(entry.path().filename())) << entry.path();
  }
}

TEST_F(KillResumeTest, ADamagedNewestCheckpointIsNamedAndTheOneBeforeItUsed) {
  const Records expected = straight_run(14);
  CommandProcess first(run_words("damaged", 10), folder / "output");
  ASSERT_EQ(first.wait(), 0) << first.output();
  const auto file = checkpoints_folder(folder / "damaged") / step_folder_name(10) / shard_file_name(1);
  std::string bytes = text_of(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);  // its size stays right
  std::ofstream(file, std::ios::binary) << bytes;
  CommandProcess second(run_words("damaged", 14), folder / "output");
  EXPECT_EQ(second.wait(), 0) << second.output();
  EXPECT_NE(second.output().find("step-00000010: rank 1: rank-0001.h5 is damaged"), std::string::npos)
      << second.output();
  const Records records = records_of(folder / "damaged");
  EXPECT_EQ(records.last_resume, 8u);
  EXPECT_EQ(records.steps, expected.steps);
  EXPECT_EQ(newest_complete("damaged"), 14u);
}

}  // namespace
}  // namespace ananke
