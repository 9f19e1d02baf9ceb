#include "runtime/health/findings.h"

#include <gtest/gtest.h>

#include <limits>

#include "ananke/site.pb.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

class FindingsTest : public ::testing::Test {
 protected:
  const Site site;
  const NodeGpus gpus;
  const std::vector<CheckThreshold> thresholds = {
      {"free", "bytes", true, 75e9, 95e9, ""}, {"errors", "", false, 1.0, 0.0, ""}, {"nothing", "", false, {}, {}, ""}};
  const CheckContext context{site, QUICK, "/", "n1", 0, 1, gpus, nullptr, thresholds, {}};
};

TEST_F(FindingsTest, TheWorstIsTheVerdictAndComesFirst) {
  Findings found(context);
  found.warn("a little");
  found.fail(IN_USE, "somebody has it", "wait");
  found.unknown("not to be read");
  const CheckResult result = found.result("fine");
  EXPECT_EQ(result.verdict(), FAIL);
  EXPECT_EQ(result.cause(), IN_USE);
  EXPECT_EQ(result.advice(), "wait");
  EXPECT_EQ(result.reason(), "somebody has it; a little; not to be read");
}

TEST_F(FindingsTest, OfUseAndDefectTheDefectCounts) {
  Findings found(context);
  found.fail(IN_USE, "used", "wait");
  found.fail(DEFECT, "broken", "drain");
  EXPECT_EQ(found.result("").cause(), DEFECT);
}

TEST_F(FindingsTest, UnknownIsNeverAPass) {
  Findings found(context);
  found.unknown("cannot be read");
  EXPECT_EQ(found.result("fine").verdict(), UNKNOWN);
  EXPECT_EQ(found.skipped("does not apply").verdict(), UNKNOWN);
  EXPECT_EQ(Findings(context).skipped("does not apply").verdict(), SKIPPED);
  EXPECT_EQ(Findings(context).result("fine").verdict(), PASS);
  EXPECT_EQ(CheckResult().verdict(), UNKNOWN);
}

TEST_F(FindingsTest, ThresholdsAreLimitsNotValuesThatFail) {
  const auto verdict = [&](const char* name, double value) {
    Findings found(context);
    found.judge(name, value, "it is so");
    return found.result("fine").verdict();
  };
  EXPECT_EQ(verdict("free", 75e9), WARN);
  EXPECT_EQ(verdict("free", 74e9), FAIL);
  EXPECT_EQ(verdict("free", 95e9), PASS);
  EXPECT_EQ(verdict("errors", 0), PASS);
  EXPECT_EQ(verdict("errors", 1), WARN);
  EXPECT_EQ(verdict("errors", 2), FAIL);
  EXPECT_EQ(verdict("nothing", 1e9), PASS);
  EXPECT_EQ(verdict("free", std::numeric_limits<double>::quiet_NaN()), UNKNOWN);
  EXPECT_EQ(verdict("free", std::numeric_limits<double>::infinity()), PASS);
  EXPECT_ERROR(verdict("fre", 1), ErrorKind::internal, "no threshold 'fre'");
}

}  // namespace
}  // namespace ananke
