#include "launcher/job_options.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"
#include "tests/runtime/comm/small_model.h"

namespace ananke {
namespace {

JobArguments parse(const std::vector<std::string>& words) {
  JobArguments job;
  CommandOptions options("check", "JOB [options]", "checks");
  job.add_to(options);
  EXPECT_TRUE(options.read(words));
  job.complete(options);
  return job;
}

TEST(JobOptions, RefuseWhatTheyDoNotKnowNamingTheNearest) {
  EXPECT_ERROR(parse({"--rank", "4", "job"}), ErrorKind::usage, "'--rank'", "did you mean '--ranks'?");
  EXPECT_ERROR(parse({"job", "--print_config"}), ErrorKind::usage, "did you mean '--print-config'?");
  EXPECT_ERROR(parse({"job", "--print"}), ErrorKind::usage, "'--print'");  // no abbreviations
  EXPECT_ERROR(parse({"job", "another"}), ErrorKind::usage, "2 words", "exactly one JOB");
  EXPECT_ERROR(parse({}), ErrorKind::usage, "exactly one JOB", "ananke check JOB");
  EXPECT_ERROR(parse({"job", "--set"}), ErrorKind::usage, "--set");
  for (const char* ranks : {"0", "-1", "1048577", "99999999999999999999", "four", ""}) {
    EXPECT_ERROR(parse({"job", "--ranks", ranks}), ErrorKind::usage, "--ranks");
  }
  EXPECT_ERROR(parse({"job", "--ranks", "1", "--ranks", "2"}), ErrorKind::usage, "--ranks");
}

TEST(JobOptions, KeepOverridesInTheirOrder) {
  const JobArguments arguments = parse({"--set", "a=1", "job.textproto", "--set=b= 2", "--ranks", "4", "--site", "x",
                                        "--run-dir", "r", "--print-config"});
  EXPECT_EQ(arguments.job.file, "job.textproto");
  EXPECT_EQ(arguments.job.overrides, (std::vector<std::string>{"a=1", "b= 2", "run_dir=r"}));
  EXPECT_EQ(arguments.job.ranks, 4u);
  EXPECT_EQ(arguments.site, "x");
  EXPECT_TRUE(arguments.print_config);
  EXPECT_FALSE(arguments.print_placement);
  EXPECT_EQ(parse({"j"}).site, "local");
  EXPECT_EQ(parse({"j"}).job.ranks, 0u);
}

TEST(JobOptions, PrintThePlacement) {
  const JobArguments arguments = parse({"job", "--print-placement"});
  EXPECT_TRUE(arguments.print_placement);
  LoadedJob loaded;
  *loaded.job.mutable_model() = testing::make_model({.layers = 1, .experts = 5});
  loaded.job.mutable_mesh()->set_shard(4);
  loaded.job.mutable_mesh()->set_expert(2);
  ::testing::internal::CaptureStdout();
  EXPECT_FALSE(print_instead(parse({"job"}), loaded));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  ::testing::internal::CaptureStdout();
  EXPECT_TRUE(print_instead(arguments, loaded));
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("placement on replicate 1 x shard 4 (expert_shard 2 x expert 2): 4 units"), std::string::npos);
  EXPECT_NE(text.find("layer.0.experts"), std::string::npos) << text;
}

}  // namespace
}  // namespace ananke
