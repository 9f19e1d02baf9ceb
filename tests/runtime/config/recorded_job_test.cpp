#include "runtime/config/recorded_job.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"
#include "tests/runtime/config/job_text.h"

namespace ananke {
namespace {

class RecordedJobs : public testing::Test {
 protected:
  RecordedJob recorded(const std::string& text) { return read_recorded_job(file_.folder().write("r.textproto", text)); }
  std::string resolved(const std::vector<std::string>& overrides = {}) {
    return print_job(file_.load(valid_job, overrides));
  }
  std::string value(const RecordedJob& job, const std::string& path) {
    for (const FieldText& field : job.fields) {
      if (field.path == path) return field.value;
    }
    return "none";
  }
  std::vector<std::string> diff(const RecordedJob& a, const RecordedJob& b) {
    std::vector<std::string> texts;
    for (const FieldDifference& one : differences(a.fields, b.fields)) {
      texts.push_back(one.path + ": " + (one.a ? *one.a : "absent") + ", " + (one.b ? *one.b : "absent"));
    }
    return texts;
  }
  JobFile file_;
};

TEST_F(RecordedJobs, AreRefusedWhereTheyAreNoJob) {
  EXPECT_ERROR(read_recorded_job("/nonexistent/job.textproto"), ErrorKind::config, "does not exist");
  EXPECT_ERROR(recorded(valid_job), ErrorKind::config, "is no resolved job");
  EXPECT_ERROR(recorded("model { vocab_size: }"), ErrorKind::config, "r.textproto:1:");
  EXPECT_ERROR(recorded("\x7f"
                        "ELF"),
               ErrorKind::config, "r.textproto:1:1");
}

TEST_F(RecordedJobs, HaveEveryFieldByItsPath) {
  const RecordedJob job =
      recorded(resolved({"model.mlp_only_layers=[0,2]", "model.intermediate_size=8", "evaluation.held_out[0].name=wiki",
                         "evaluation.held_out[0].generated_documents=3"}));
  EXPECT_TRUE(job.not_read.empty());
  EXPECT_EQ(value(job, "model.mlp_only_layers"), "[0, 2]");
  EXPECT_EQ(value(job, "plugins.tune.lr"), "0.25");
  EXPECT_EQ(value(job, "plugins.tune.groups[0].match"), "\"norm\"");
  EXPECT_EQ(value(job, "optimizer[0].use"), "\"tune\"");
  EXPECT_EQ(value(job, "evaluation.held_out[wiki].generated_documents"), "3");
  EXPECT_EQ(value(job, "resolved.plugins[tune].role"), "\"optimizer\"");
  EXPECT_EQ(job.job.model().hidden_size(), 32u);
}

TEST_F(RecordedJobs, DifferByPathOneSideMayHaveNone) {
  const RecordedJob a = recorded(resolved()), same = recorded(resolved());
  EXPECT_TRUE(diff(a, same).empty());
  const RecordedJob b = recorded(resolved({"plugins.tune.lr=0.5", "training.steps=30", "initial_weights="}));
  EXPECT_EQ(diff(a, b), (std::vector<std::string>{"training.steps: 20, 30", "plugins.tune.lr: 0.25, 0.5",
                                                  "initial_weights: absent, \"\""}));
  EXPECT_EQ(diff(b, a).back(), "initial_weights: \"\", absent");
  EXPECT_EQ(diff({}, recorded("name: \"x\" resolved { }")), std::vector<std::string>{"name: absent, \"x\""});
}

// A run of another version, whose plugins are gone.
TEST_F(RecordedJobs, AreReadAsFarAsTheyAreKnownAndTheRestIsNamed) {
  std::string text = changed(resolved(), "rope_theta", "rope_phi");
  text = changed(text, "tune.so", "gone.so");
  const RecordedJob job = recorded(text);
  ASSERT_EQ(job.not_read.size(), 2u);
  EXPECT_NE(job.not_read[0].find("message Model has no field 'rope_phi'"), std::string::npos) << job.not_read[0];
  EXPECT_NE(job.not_read[1].find("the config of plugin 'tune' is not compared"), std::string::npos) << job.not_read[1];
  EXPECT_NE(job.not_read[1].find("gone.so does not exist"), std::string::npos) << job.not_read[1];
  EXPECT_EQ(value(job, "model.hidden_size"), "32");
  EXPECT_EQ(value(job, "plugins.tune"), "present");
  EXPECT_EQ(value(job, "plugins.tune.lr"), "none");
}

}  // namespace
}  // namespace ananke
