// Whole jobs whose experts are shared out over processes that exchange tokens.
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "ananke/telemetry.pb.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/folder.h"
#include "tests/system/command_process.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;

class ExpertParallelJob : public ::testing::Test {
 protected:
  ExpertParallelJob() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ananke-expert-parallel.XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~ExpertParallelJob() override { std::filesystem::remove_all(folder); }

  std::vector<std::string> words(const std::string& job, const std::string& run,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> all = {
        "run",       std::string(ANANKE_SOURCE_DIR "/site/local/jobs/") + job + ".textproto",
        "--ranks",   "4",
        "--run-dir", (folder / run).string(),
        "--set",     "training.rows_per_step=8",
        "--set",     "training.rows_per_microbatch=1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void expect_run(const std::vector<std::string>& all) const {
    CommandProcess process(all, folder / "output");
    EXPECT_EQ(process.wait(), 0) << process.output();
  }
  std::vector<StepRecord> steps_of(const std::string& run) const {
    std::vector<StepRecord> steps;
    std::ifstream stream(folder / run / "steps.jsonl");
    for (std::string text; std::getline(stream, text);) {
      TelemetryLine line;
      if (google::protobuf::util::JsonStringToMessage(text, &line).ok() && line.has_step())
        steps.push_back(line.step());
    }
    return steps;
  }
  std::uint64_t newest_complete(const std::string& run) const {
    for (const FoundCheckpoint& found : find_checkpoints(folder / run)) {
      if (found.complete()) return found.step;
    }
    return 0;
  }
  std::filesystem::path folder;
};

TEST_F(ExpertParallelJob, HasTheLossesOfTheJobThatSharesNoExpertsOutAndSaysWhatTravelled) {
  expect_run(words("smoke", "shared", {"--set", "training.steps=6", "--set", "learning_rate.warmup_steps=2"}));
  expect_run(words("experts", "exchanged", {"--set", "training.steps=6", "--set", "learning_rate.warmup_steps=2"}));
  const auto wanted = steps_of("shared"), got = steps_of("exchanged");
  ASSERT_EQ(wanted.size(), 6U);
  ASSERT_EQ(got.size(), 6U);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i].loss(), wanted[i].loss(), 1e-4 * wanted[i].loss()) << "step " << i + 1;
    EXPECT_EQ(got[i].device_reads(), wanted[i].device_reads()) << "how many tokens travel, the device alone knows";
    std::map<std::string, std::uint64_t> moved;
    for (const TrafficRecord& line : got[i].traffic()) {
      if (line.axis() == "expert") moved[line.direction()] += line.bytes();
    }
    for (const char* direction : {"dispatch", "combine", "combine_backward", "dispatch_backward"}) {
      EXPECT_GT(moved[direction], 0U) << direction;
    }
  }
}

// One rank of an exchange is killed: nobody waits for it, and the job goes on from its checkpoint as if nothing had
// been.
TEST_F(ExpertParallelJob, EndsWhenARankIsKilledAndGoesOnBitForBit) {
  const std::vector<std::string> often = {
      "--set",   "checkpoint.every_steps=2", "--set", "evaluation.every_steps=0",
      "--set",   "training.steps=100000",    "--set", "learning_rate.total_steps=100000",
      "--resume"};
  {
    CommandProcess job(words("experts", "killed", often), folder / "output");
    while (job.running() && newest_complete("killed") < 4) std::this_thread::sleep_for(milliseconds(2));
    const auto workers = job.workers();
    ASSERT_TRUE(job.running() && workers.count(3)) << job.output();
    kill(workers.at(3), SIGKILL);
    EXPECT_EQ(job.wait(), static_cast<int>(ErrorKind::worker_failed)) << job.output();
    EXPECT_NE(job.output().find("rank 3 ("), std::string::npos) << job.output();
  }
  const std::uint64_t last = newest_complete("killed") + 4;
  const std::vector<std::string> until = {"--set",   "checkpoint.every_steps=2",
                                          "--set",   "evaluation.every_steps=0",
                                          "--set",   "training.steps=" + std::to_string(last),
                                          "--set",   "learning_rate.total_steps=100000",
                                          "--resume"};
  expect_run(words("experts", "killed", until));
  expect_run(words("experts", "straight", until));
  const auto got = steps_of("killed"), wanted = steps_of("straight");
  ASSERT_EQ(got.size(), last);
  ASSERT_EQ(wanted.size(), last);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].loss(), wanted[i].loss()) << "step " << i + 1;
    EXPECT_EQ(got[i].gradient_norm(), wanted[i].gradient_norm()) << "step " << i + 1;
  }
}

TEST_F(ExpertParallelJob, WithoutThePluginIsRefusedBeforeAnythingStarts) {
  const std::vector<std::string> all = {
      "check", ANANKE_SOURCE_DIR "/site/local/jobs/smoke.textproto", "--ranks", "4", "--set", "mesh.expert=2"};
  CommandProcess process(all, folder / "output");
  EXPECT_EQ(process.wait(), static_cast<int>(ErrorKind::config)) << process.output();
  EXPECT_NE(process.output().find("mesh.expert"), std::string::npos) << process.output();
  EXPECT_NE(process.output().find("plugins { use: \"ep\" }"), std::string::npos) << process.output();
}

}  // namespace
}  // namespace ananke
