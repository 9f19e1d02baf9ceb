#include "launcher/deadlines.h"

#include <gtest/gtest.h>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

using std::chrono::seconds;

TEST(StallLimits, AreTheJobsThenTheSitesThenOurs) {
  Site site;
  Job job;
  EXPECT_EQ(stall_limits(site, job).factor, 10);
  EXPECT_EQ(stall_limits(site, job).least, seconds(120));
  site.mutable_stalls()->set_factor(4);
  site.mutable_stalls()->set_least("5min");
  job.mutable_stalls()->set_least("90s");
  job.mutable_stalls()->set_stacks("0s");
  job.mutable_stalls()->set_steps(20);
  const StallLimits limits = stall_limits(site, job);
  EXPECT_EQ(limits.factor, 4);
  EXPECT_EQ(limits.least, seconds(90));
  EXPECT_EQ(limits.stacks, seconds(0));
  EXPECT_EQ(limits.steps, 20);
}

TEST(StallLimits, AFactorThatTakesAStepForAStandstillIsRefused) {
  Site site;
  Job job;
  site.mutable_stalls()->set_factor(1.5);
  try {
    stall_limits(site, job);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_NE(std::string(error.what()).find("stalls.factor of the site is 1.5"), std::string::npos) << error.what();
  }
  job.mutable_stalls()->set_factor(0);
  EXPECT_EQ(stall_limits(site, job).factor, 0);
}

}  // namespace
}  // namespace ananke
