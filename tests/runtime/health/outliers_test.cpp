#include "runtime/health/outliers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/refusal.h"

namespace ananke {
namespace {

TEST(Outliers, MedianAndTail) {
  EXPECT_TRUE(std::isnan(median_of({})));
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 2, 3}), 2.5);
  EXPECT_NEAR(normal_tail(0.025), 1.95996, 1e-4);
  EXPECT_NEAR(normal_tail(1e-9), 5.99781, 1e-4);
}

TEST(Outliers, FewValuesSayNothing) {
  EXPECT_TRUE(find_outliers(std::vector<double>{55, 55, 55, 1}, true, 4, 5).empty());
}

TEST(Outliers, ABadOneIsFoundAndAFastOneIsNot) {
  std::vector<double> rates(32, 55);
  for (std::size_t i = 0; i < rates.size(); ++i) rates[i] += 0.1 * static_cast<double>(i % 5);
  rates[7] = 41;
  rates[9] = 70;
  const auto found = find_outliers(rates, true, rates.size(), 5);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].at, 7U);
  EXPECT_NEAR(found[0].percent, 25.6, 0.5);
}

// A mean and a standard deviation would be pulled along.
TEST(Outliers, ManyBadOnesDoNotHideEachOther) {
  std::vector<double> rates(40, 55);
  for (std::size_t i = 0; i < 12; ++i) rates[i] = 30 + static_cast<double>(i);
  EXPECT_EQ(find_outliers(rates, true, rates.size(), 5).size(), 12U);
}

TEST(Outliers, EqualValuesWithACounterStepAccuseNobody) {
  std::vector<double> clocks(64, 1980);
  clocks[3] = 1965;
  EXPECT_TRUE(find_outliers(clocks, true, clocks.size(), 0.1).empty());
}

// 5,565 healthy nodes: without a correction seven of them would be beyond three deviations each time.
TEST(Outliers, OfManyHealthyNodesNoneIsAccused) {
  std::mt19937 random(5);
  std::normal_distribution<double> rate(55, 1.5);
  int accused = 0;
  for (int draw = 0; draw < 40; ++draw) {
    std::vector<double> rates(5565);
    for (double& one : rates) one = rate(random);
    accused += static_cast<int>(find_outliers(rates, true, rates.size(), 0).size());
  }
  EXPECT_LE(accused, 2);
}

HealthReport fleet(int nodes, const std::string& driver = "580") {
  HealthReport report;
  for (int i = 0; i < nodes; ++i) {
    NodeHealth& node = *report.add_node();
    node.set_node(fmt::format("n{}", i));
    CheckResult& check = *node.add_check();
    check.set_id("rates");
    check.set_verdict(PASS);
    for (int gpu = 0; gpu < 4; ++gpu) {
      HealthValue& value = *check.add_value();
      value.set_name("matmul");
      value.set_entity(fmt::format("gpu{}", gpu));
      value.set_number(730 + i % 7 + gpu);
      value.set_compare(HealthValue::HIGHER);
    }
    HealthValue& text = *check.add_value();
    text.set_name("driver");
    text.set_text(driver);
    text.set_compare(HealthValue::EQUAL);
  }
  return report;
}

const CheckResult& last(const HealthReport& report, int node) { return *report.node(node).check().rbegin(); }

TEST(Outliers, PeersNameGpuValueAndMedian) {
  HealthReport report = fleet(24);
  report.mutable_node(5)->mutable_check(0)->mutable_value(2)->set_number(600);
  report.mutable_node(6)->mutable_check(0)->mutable_value(1)->set_number(670);
  report.mutable_node(7)->mutable_check(0)->mutable_value(4)->set_text("570");
  compare_with_peers(&report, Site());
  EXPECT_EQ(last(report, 0).id(), "peers");
  EXPECT_EQ(last(report, 0).verdict(), PASS);
  EXPECT_EQ(last(report, 5).verdict(), FAIL);
  EXPECT_NAMES(last(report, 5).reason(), "rates matmul of gpu2 is 600, 18");
  EXPECT_NAMES(last(report, 5).reason(), "worse than the median of 96 (734");
  EXPECT_EQ(last(report, 6).verdict(), WARN);
  EXPECT_EQ(last(report, 7).verdict(), WARN);
  EXPECT_EQ(last(report, 7).reason(), "rates driver is 570, and 23 of 24 have 580");
}

TEST(Outliers, TheSiteSaysFromWhereOnPeersAreBad) {
  HealthReport report = fleet(24);
  report.mutable_node(5)->mutable_check(0)->mutable_value(2)->set_number(600);
  Site site;
  HealthThreshold& threshold = *site.mutable_health()->add_threshold();
  threshold.set_check("peers");
  threshold.set_fail("none");
  threshold.set_warn("30");
  compare_with_peers(&report, site);
  EXPECT_EQ(last(report, 5).verdict(), PASS);
}

TEST(Outliers, TwoNodesOfTwoDriversAccuseNobodyAndOneAloneIsNotCompared) {
  HealthReport two = fleet(2);
  two.mutable_node(1)->mutable_check(0)->mutable_value(4)->set_text("570");
  compare_with_peers(&two, Site());
  EXPECT_EQ(last(two, 0).verdict(), PASS);
  EXPECT_EQ(last(two, 1).verdict(), PASS);
  HealthReport one = fleet(1);
  compare_with_peers(&one, Site());
  EXPECT_EQ(last(one, 0).verdict(), SKIPPED);
}

TEST(Outliers, ANodeIsComparedWithWhatItWas) {
  HealthReport report = fleet(2);
  report.mutable_node(1)->mutable_check(0)->mutable_value(2)->set_number(600);
  std::map<std::string, std::vector<NodeHealth>> earlier;
  const HealthReport before = fleet(2);
  for (int run = 0; run < 6; ++run) {
    for (const NodeHealth& node : before.node()) earlier[node.node()].push_back(node);
  }
  compare_with_history(&report, earlier, Site());
  EXPECT_EQ(last(report, 0).verdict(), PASS);
  EXPECT_EQ(last(report, 1).verdict(), FAIL);
  EXPECT_NAMES(last(report, 1).reason(), "worse than the node's own median of 6 checks (733)");
  HealthReport fresh = fleet(2);
  compare_with_history(&fresh, {}, Site());
  EXPECT_EQ(last(fresh, 0).verdict(), SKIPPED);
}

}  // namespace
}  // namespace ananke
