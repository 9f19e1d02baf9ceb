// `ananke compare` of real runs: a resumed one with a straight one, and one that is still running.
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "ananke/comparison.pb.h"
#include "runtime/base/error.h"
#include "tests/system/command_process.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

constexpr const char* job_text = R"(
run_dir: "set by the test"
model { vocab_size: 16 hidden_size: 8 num_hidden_layers: 1 num_attention_heads: 1
        num_experts: 2 num_experts_per_tok: 1 moe_intermediate_size: 4 }
training { steps: 6 sequence_length: 8 rows_per_step: 2 rows_per_microbatch: 1 }
data { generated { documents: 8 shortest: 4 longest: 8 branches: 2 } }
optimizer { use: "adamw" }
evaluation { every_steps: 3 held_out { name: "one" generated_documents: 2 }
             held_out { name: "two" generated_documents: 3 rows: 1 } }
)";

class CompareCommand : public ::testing::Test {
 protected:
  CompareCommand() { folder_.write("job.textproto", job_text); }

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::vector<std::string> run_words(const std::string& run, const std::vector<std::string>& more) const {
    std::vector<std::string> words{"run", path("job.textproto"), "--run-dir", path(run), "--ranks", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string output_of(const std::vector<std::string>& words, ErrorKind* refused = nullptr) {
    CommandProcess command(words, path("output"));
    const int code = command.wait();
    EXPECT_TRUE(code == 0 || refused != nullptr) << command.output();
    if (refused != nullptr) *refused = static_cast<ErrorKind>(code);
    return command.output();
  }
  RunComparison comparison(const std::string& a, const std::string& b) {
    RunComparison result;
    const std::string json = output_of({"compare", path(a), path(b), "--json"});
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &result).ok()) << json;
    return result;
  }
  TemporaryFolder folder_;
};

TEST_F(CompareCommand, FindsAResumedRunEqualToAStraightOne) {
  output_of(run_words("straight", {}));
  output_of(run_words("resumed", {"--set", "training.steps=3"}));
  output_of(run_words("resumed", {"--resume"}));
  const RunComparison found = comparison("straight", "resumed");
  EXPECT_EQ(found.configuration_size(), 0) << found.DebugString();
  EXPECT_EQ(found.common_steps(), 6u);
  EXPECT_EQ(found.equal_steps(), 6u);
  ASSERT_EQ(found.evaluations_size(), 4);
  for (const EvaluationPoint& point : found.evaluations()) EXPECT_EQ(point.a(), point.b()) << point.DebugString();
  const std::string text = output_of({"compare", path("straight"), path("resumed")});
  EXPECT_NE(text.find("all 6 common steps are equal to the last bit"), std::string::npos) << text;
  ErrorKind refused{};
  const std::string no_run = output_of({"compare", path("straight"), folder_.path().string()}, &refused);
  EXPECT_EQ(refused, ErrorKind::data);
  EXPECT_NE(no_run.find("is no run's folder: it has no steps.jsonl"), std::string::npos) << no_run;
  EXPECT_NE(no_run.find("is no resolved job"), std::string::npos) << no_run;
}

TEST_F(CompareCommand, TakesARunThatIsRunning) {
  output_of(run_words("short", {}));
  CommandProcess running(run_words("long", {"--set", "training.steps=1000000"}), path("long-output"));
  const auto steps_of = [&] { return text_of(folder_.path() / "long" / "steps.jsonl"); };
  while (running.running() && steps_of().find("\"step\":7,") == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const RunComparison found = comparison("short", "long");
  EXPECT_EQ(found.b().state(), "running");
  EXPECT_GE(found.b().last_step(), 7u);
  EXPECT_EQ(found.equal_steps(), 6u);
  ASSERT_EQ(found.configuration_size(), 1) << found.DebugString();
  EXPECT_EQ(found.configuration(0).path(), "training.steps");
  kill(running.pid(), SIGTERM);
  EXPECT_EQ(running.wait(), static_cast<int>(ErrorKind::interrupted)) << running.output();
  EXPECT_EQ(comparison("short", "long").b().state(), "stopped on request");
}

}  // namespace
}  // namespace ananke
