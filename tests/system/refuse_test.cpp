// What can be refused before a worker starts is: by the launcher, in a sentence, and the run folder stays as it was.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "runtime/checkpoint/folder.h"
#include "tests/system/command_process.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

constexpr const char* job_text = R"(
run_dir: "set by the test"
model { vocab_size: 16 hidden_size: 8 num_hidden_layers: 1 num_attention_heads: 1
        num_experts: 2 num_experts_per_tok: 1 moe_intermediate_size: 4 }
training { steps: 2 sequence_length: 8 rows_per_step: 1 }
data { generated { documents: 4 shortest: 4 longest: 8 branches: 2 } }
optimizer { use: "adamw" }
)";

class RefuseTest : public ::testing::Test {
 protected:
  RefuseTest() { folder_.write("job.textproto", job_text); }

  std::filesystem::path run_dir() const { return folder_.path() / "run"; }
  int run(const std::vector<std::string>& more) {
    std::vector<std::string> words{"run", (folder_.path() / "job.textproto").string(), "--run-dir", run_dir().string()};
    words.insert(words.end(), more.begin(), more.end());
    CommandProcess job(words, folder_.path() / "output");
    const int code = job.wait();
    output_ = job.output();
    return code;
  }
  bool says(const std::string& text) const { return output_.find(text) != std::string::npos; }
  void expect_refused(const std::vector<std::string>& more, ErrorKind kind, const std::vector<std::string>& texts) {
    const std::string job = text_of(run_dir() / "job.textproto"), log = text_of(run_dir() / "logs" / "rank-0.log");
    EXPECT_EQ(run(more), static_cast<int>(kind)) << output_;
    for (const std::string& text : texts) EXPECT_TRUE(says(text)) << text << " is not in " << output_;
    EXPECT_FALSE(says("to go on from")) << "the same command would be refused again: " << output_;
    EXPECT_EQ(text_of(run_dir() / "job.textproto"), job);
    EXPECT_EQ(text_of(run_dir() / "logs" / "rank-0.log"), log) << "a worker was started";
  }

  TemporaryFolder folder_;
  std::string output_;
};

class WrongWords : public ::testing::Test {
 protected:
  void expect(const std::vector<std::string>& words, int code, const std::vector<std::string>& texts) {
    CommandProcess command(words, folder_.path() / "output");
    EXPECT_EQ(command.wait(), code) << command.output();
    for (const std::string& text : texts) EXPECT_NE(command.output().find(text), std::string::npos) << command.output();
  }
  TemporaryFolder folder_;
};

TEST_F(WrongWords, AreAnsweredWithTheRightOnes) {
  expect({"checkpoint"}, 2, {"checkpoint is no command by itself", "list, info, verify"});
  expect({"checkpoint", "verfiy"}, 2, {"'checkpoint verfiy'", "did you mean 'verify'?"});
  expect({"data", "train"}, 2, {"'data train'", "import, info, head, ngram"});
  expect({"chekc"}, 2, {"did you mean 'check'?", "ananke --help"});
  expect({"xyzzy\x1b[31m"}, 2, {"there is no command 'xyzzy", "ananke --help"});
  expect({"--version"}, 0, {"ananke 0."});
  expect({"export", "", "--output", "x"}, 2, {"a word is empty"});
}

// What is printed is the product of all but `run`, and a disk may be full.
TEST_F(WrongWords, OutputThatCannotBeWrittenIsAFailure) {
  const std::string job = folder_.write("job.textproto", job_text).string(), run_dir = (folder_ / "run").string();
  const int lost = static_cast<int>(ErrorKind::resource);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"run", "--help"},
                                             {"plugins"},
                                             {"topology", "--nodes", "2"},
                                             {"check", job, "--run-dir", run_dir},
                                             {"run", job, "--run-dir", run_dir, "--print-config"},
                                             {"run", job, "--run-dir", run_dir, "--dry-run"}}) {
    CommandProcess command(words, "/dev/full");
    EXPECT_EQ(command.wait(), lost) << fmt::format("{}", fmt::join(words, " "));
  }
  CommandProcess health({"health", "--root", folder_.path().string(), "--format", "json"}, "/dev/full");
  EXPECT_EQ(health.wait(), 2) << "there is no verdict";
  CommandProcess run({"run", job, "--run-dir", run_dir}, "/dev/full");
  EXPECT_EQ(run.wait(), 0) << "its product is the run folder";
}

TEST_F(WrongWords, NameTheFolderThatIsMeant) {
  const std::string file = folder_.write("hf/config.json", "{}").string();
  expect({"import", file}, 5, {file + " is no folder", "config.json and safetensors"});
  expect({"import", (folder_ / "none").string()}, 5, {"none does not exist"});
}

// Only the plugins' own code knows; `check` says what `run` does, by the same sentence.
TEST_F(RefuseTest, CheckAndRunSayTheSameOfWhatPluginsRefuse) {
  const std::string gone = (folder_ / "gone.h5").string();
  folder_.write("job.textproto", std::string(job_text) + "plugins { use: \"packing\" }\n");
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--set", "training.compute=BF16"},
        std::vector<std::string>{"--set", "plugins.packing.mix[0]={tokens: \"" + gone + "\" weight: 1}"}}) {
    std::vector<std::string> words{"check", (folder_ / "job.textproto").string(), "--run-dir", run_dir().string()};
    words.insert(words.end(), more.begin(), more.end());
    CommandProcess check(words, folder_ / "checked");
    const int code = check.wait();
    EXPECT_NE(code, 0) << check.output();
    EXPECT_EQ(run(more), code) << output_;
    EXPECT_EQ(check.output().find("is valid"), std::string::npos);
    EXPECT_NE(check.output().find(more[1].starts_with("training") ? "BF16" : gone), std::string::npos)
        << check.output();
  }
}

TEST_F(RefuseTest, ARuleThatFitsNoParameter) {
  expect_refused({"--set", "optimizer[0].match=none_of_these"}, ErrorKind::config, {"none_of_these"});
}

TEST_F(RefuseTest, AStoreThatIsNoneOrOfAnotherVocabulary) {
  const std::string store = folder_.write("tokens.h5", "not HDF5").string();
  expect_refused({"--set", "evaluation.held_out[0]={name: \"wiki\" tokens: \"" + store + "\"}"}, ErrorKind::data,
                 {"held-out set 'wiki'", store, "not an HDF5 file"});
  folder_.write("text.txt", "some text");
  CommandProcess import({"data", "import", "--output", store, (folder_.path() / "text.txt").string()},
                        folder_.path() / "output");
  ASSERT_EQ(import.wait(), 0) << import.output();
  expect_refused({"--set", "evaluation.held_out[0].name=wiki", "--set", "evaluation.held_out[0].tokens=" + store},
                 ErrorKind::config, {"held-out set 'wiki'", "257 tokens", "model.vocab_size is 16"});
}

TEST_F(RefuseTest, ChangesThatARunCannotTake) {
  ASSERT_EQ(run({}), 0) << output_;
  expect_refused({}, ErrorKind::config, {"checkpoints up to step 2", "--resume"});
  expect_refused({"--resume", "--set", "model.hidden_size=16", "--set", "training.seed=7"}, ErrorKind::config,
                 {"model.hidden_size: 8 in the checkpoint, 16 in the job", "training.seed: 1"});
  expect_refused({"--resume", "--set", "training.steps=1"}, ErrorKind::config, {"step 2, past training.steps 1"});
  EXPECT_EQ(run({"--resume", "--set", "training.steps=3"}), 0) << output_;
  EXPECT_TRUE(says("changed: training.steps: 2 before, 3 now")) << output_;
}

TEST_F(RefuseTest, AFolderWhoseCheckpointsAreAllDamaged) {
  ASSERT_EQ(run({}), 0) << output_;
  const auto checkpoint = checkpoints_folder(run_dir()) / step_folder_name(2);
  std::filesystem::remove(checkpoint / "COMPLETE");
  expect_refused({}, ErrorKind::config, {"1 checkpoints, none of which can be used", "COMPLETE is missing"});
  EXPECT_EQ(run({"--resume"}), static_cast<int>(ErrorKind::checkpoint)) << output_;
  EXPECT_FALSE(says("to go on from")) << output_;
}

}  // namespace
}  // namespace ananke
