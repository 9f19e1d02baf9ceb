#include "runtime/config/resume.h"

#include <gtest/gtest.h>

#include "runtime/config/schema.h"
#include "tests/refusal.h"
#include "tests/runtime/config/job_text.h"

namespace ananke {
namespace {

class Resume : public testing::Test {
 protected:
  std::vector<FieldChange> compare(const std::vector<std::string>& overrides, const std::string& text = valid_job) {
    const LoadedJob before = file_.load(valid_job);
    const LoadedJob after = file_.load(text, overrides);
    return compare_for_resume(before.job, after.job, *after.schema);
  }
  void expect_change(const std::vector<FieldChange>& changes, const std::string& path, const std::string& before,
                     const std::string& after, bool refused) {
    ASSERT_EQ(changes.size(), 1u) << path;
    EXPECT_EQ(changes[0].path, path);
    EXPECT_EQ(changes[0].before, before);
    EXPECT_EQ(changes[0].after, after);
    EXPECT_EQ(changes[0].refused, refused) << path;
  }
  JobFile file_;
};

TEST_F(Resume, FindsNoChangeInAnEqualJob) {
  EXPECT_TRUE(compare({}).empty());
  EXPECT_TRUE(compare({"training.recompute=NONE", "run_dir=elsewhere", "name=other"}).empty());
  // A job of before a default was written down.
  Job before = file_.load(valid_job).job;
  const LoadedJob after = file_.load(valid_job);
  before.mutable_training()->clear_clip_norm();
  before.clear_checkpoint();
  EXPECT_TRUE(compare_for_resume(before, after.job, *after.schema).empty());
}

TEST_F(Resume, TellsWhatChanged) {
  expect_change(compare({"training.steps=30"}), "training.steps", "20", "30", false);
  expect_change(compare({"plugins.tune.lr=0.5"}), "plugins.tune.lr", "0.25", "0.5", false);
  expect_change(compare({"plugins.tune.scales=[1,2]"}), "plugins.tune.scales", "[]", "[1, 2]", false);
  expect_change(compare({"training.recompute=FULL"}), "training.recompute", "NONE", "FULL", false);
  expect_change(compare({"optimizer[0].match=norm"}), "optimizer[0].match", "\".*\"", "\"norm\"", false);
  expect_change(compare({"optimizer[1].use=tune"}), "optimizer[1]", "absent", "{ match: \".*\" use: \"tune\" }", false);
}

TEST_F(Resume, RefusesWhatIsFixed) {
  expect_change(compare({"model.vocab_size=65"}), "model.vocab_size", "64", "65", true);
  expect_change(compare({"training.seed=2"}), "training.seed", "1", "2", true);
  expect_change(compare({"data.generated.documents=9"}), "data.generated.documents", "4096", "9", true);
  expect_change(compare({"plugins.tune.groups[0].size=4"}), "plugins.tune.groups[0].size", "3", "4", true);
  EXPECT_EQ(compare({"plugins.tune.groups+={match: \"x\"}"})[0].refused, true);
  const auto dense = compare({"model.mlp_only_layers=[1]", "model.intermediate_size=8"});
  ASSERT_EQ(dense.size(), 2u);
  EXPECT_TRUE(dense[0].refused && dense[1].refused);
}

TEST_F(Resume, RefusesAnotherSourceOfTokens) {
  const auto tokens = file_.folder().write("train.h5", "x");
  const auto changes = compare({}, changed(valid_job, "generated { }", "tokens: \"" + tokens.string() + "\""));
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].path, "data.tokens");
  EXPECT_EQ(changes[1].path, "data.generated");
  EXPECT_EQ(changes[1].after, "absent");
  EXPECT_TRUE(changes[0].refused && changes[1].refused);
}

TEST_F(Resume, TellsPluginsThatCameAndWent) {
  const auto changes = compare({"plugins[1].use=other_parameters"});
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].path, "plugins.fsdp");
  EXPECT_EQ(changes[0].after, "absent");
  EXPECT_EQ(changes[1].path, "plugins.other_parameters");
}

TEST_F(Resume, ListsEveryRefusedFieldAndWhatToDo) {
  const Job now = file_.load(valid_job).job;
  EXPECT_NO_THROW(check_resume(compare({"training.steps=30"}), now));
  EXPECT_ERROR(check_resume(compare({"model.vocab_size=65", "training.seed=2", "training.steps=30"}), now),
               ErrorKind::config, "job.textproto: the job cannot be resumed",
               "model.vocab_size: 64 in the checkpoint, 65 in the job", "training.seed: 1", "run_dir");
}

TEST_F(Resume, RefusesACheckpointPastTheLastStep) {
  const Job before = file_.load(valid_job).job;
  const LoadedJob shorter = file_.load(valid_job, {"training.steps=10"});
  EXPECT_EQ(changes_of_resume(before, 10, shorter).size(), 1u);
  EXPECT_ERROR(changes_of_resume(before, 11, shorter), ErrorKind::config, "job.textproto: ", "step 11",
               "training.steps 10", "raise");
  EXPECT_ERROR(changes_of_resume(before, 2, file_.load(valid_job, {"training.seed=2"})), ErrorKind::config,
               "training.seed: 1 in the checkpoint");
}

}  // namespace
}  // namespace ananke
