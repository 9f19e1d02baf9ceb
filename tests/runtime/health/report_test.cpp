#include "runtime/health/report.h"

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

NodeAnswer answer(const std::string& node, HealthVerdict verdict, HealthCause cause = DEFECT,
                  const std::string& reason = "it's so") {
  NodeAnswer one{.node = node, .health = NodeHealth()};
  one.health->set_begin(1000);
  one.health->set_end(1001);
  CheckResult& check = *one.health->add_check();
  check.set_id("gpu.count");
  check.set_verdict(verdict);
  check.set_cause(cause);
  check.set_reason(reason);
  return one;
}

Site site() {
  Site one;
  one.set_name("x");
  one.mutable_health();
  return one;
}

TEST(HealthReportTest, TheWorstNodeIsTheVerdictAndTheExitCode) {
  const auto exit_code = [](const std::vector<NodeAnswer>& answers) {
    return make_report(answers, site(), QUICK, "", {}).exit_code();
  };
  EXPECT_EQ(exit_code({answer("a", PASS), answer("b", PASS)}), 0U);
  EXPECT_EQ(exit_code({answer("a", PASS), answer("b", WARN)}), 0U);
  EXPECT_EQ(exit_code({answer("a", PASS), answer("b", FAIL)}), 1U);
  EXPECT_EQ(exit_code({answer("a", PASS), answer("b", UNKNOWN)}), 1U);
  EXPECT_EQ(exit_code({answer("a", SKIPPED)}), 1U) << "nothing was found out";
  EXPECT_EQ(exit_code({answer("a", PASS), {.node = "b", .why_not = "silent"}}), 1U);
  EXPECT_EQ(exit_code({{.node = "a", .why_not = "silent"}}), 2U);
  EXPECT_EQ(exit_code({}), 2U);
}

TEST(HealthReportTest, NamesWhoIsSilentAndExcludesWhoIsBad) {
  const HealthReport report = make_report(
      {answer("a", PASS), answer("b", FAIL), {.node = "c", .why_not = "it did not report"}, answer("d", FAIL, IN_USE)},
      site(), QUICK, "77", {});
  EXPECT_EQ(report.exclude(), "b,c,d");
  ASSERT_EQ(report.drain_command_size(), 1) << "a node that is used, or did not say why, is not drained";
  EXPECT_EQ(report.drain_command(0), "scontrol update NodeName=b State=DRAIN Reason='ananke: gpu.count: it'\\''s so'");
  const std::string text = report_text(report);
  EXPECT_NAMES(text, "a     PASS     ");
  EXPECT_NAMES(text, "c     UNKNOWN  report: it did not report\n");
  EXPECT_NAMES(text, "verdict FAIL: 2 FAIL, 1 UNKNOWN, 1 PASS, level QUICK, site x, job 77\n");
  EXPECT_NAMES(text, "\n--exclude=b,c,d\n");
  EXPECT_NAMES(text, "to drain nodes with a defect (not executed):\n  scontrol update NodeName=b");
  EXPECT_NAMES(report_text(report, true), "draining nodes with a defect:\n  scontrol update NodeName=b");
}

TEST(HealthReportTest, OneCauseOfManyNodesIsSaidToBeOne) {
  std::vector<NodeAnswer> answers;
  for (int i = 0; i < 12; ++i) answers.push_back(answer(fmt::format("n{}", i), i < 5 ? FAIL : PASS));
  const HealthReport report = make_report(answers, site(), QUICK, "", {});
  ASSERT_EQ(report.note_size(), 1);
  EXPECT_NAMES(report.note(0), "gpu.count is bad on 5 of 12 nodes: rather one cause");
  answers[4] = answer("n4", PASS);
  answers[3] = answer("n3", PASS);
  EXPECT_EQ(make_report(answers, site(), QUICK, "", {}).note_size(), 0);
}

// A node begins after it was asked and ends before it was heard: only what is sure is held against it.
TEST(HealthReportTest, AClockIsJudgedByWhatIsSure) {
  const auto clock = [](double begin, double end) {
    const HealthReport report = make_report({answer("a", PASS)}, site(), QUICK, "", {begin, end});
    for (const CheckResult& check : report.node(0).check()) {
      if (check.id() == "time.skew") return check;
    }
    return CheckResult();
  };
  EXPECT_EQ(clock(999, 1002).verdict(), PASS);
  EXPECT_EQ(clock(980, 1010).verdict(), PASS) << "a slow start";
  EXPECT_EQ(clock(999, 1000.5).verdict(), WARN);
  EXPECT_EQ(clock(990, 995).verdict(), FAIL);
  EXPECT_NAMES(clock(990, 995).reason(), "at least 6.00 s ahead of");
  EXPECT_NAMES(clock(1005, 1010).reason(), "at least 5.00 s behind");
  EXPECT_EQ(make_report({answer("a", PASS)}, site(), QUICK, "", {}).node(0).check(0).id(), "gpu.count");
}

TEST(HealthReportTest, JsonIsReadBackAndPrometheusIsQuoted) {
  NodeAnswer one = answer("a", UNKNOWN, DEFECT, "a \"word\"");
  HealthValue& value = *one.health->mutable_check(0)->add_value();
  value.set_name("used");
  value.set_entity("x\"y\\z");
  value.set_number(12.5);
  const HealthReport report = make_report({one}, site(), FULL, "", {});
  const std::string text = report_json(report);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  HealthReport back;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &back).ok()) << text;
  EXPECT_EQ(back.SerializeAsString(), report.SerializeAsString());
  EXPECT_NAMES(text, "\"verdict\":\"UNKNOWN\"");
  const std::string metrics = report_prometheus(report);
  EXPECT_NAMES(metrics, "ananke_health_verdict{node=\"a\"} 3\n");
  EXPECT_NAMES(metrics, "name=\"used\",entity=\"x\\\"y\\\\z\",unit=\"\"} 12.5\n");
}

TEST(HealthReportTest, AHistoryThatCannotBeKeptIsANote) {
  const TemporaryFolder folder;
  Site one = site();
  one.mutable_health()->set_history((folder.write("file", "x") / "below").string());
  HealthReport report = make_report({answer("a", PASS)}, one, QUICK, "", {});
  keep_history(&report, one);
  ASSERT_EQ(report.note_size(), 1);
  EXPECT_NAMES(report.note(0), " is not kept: cannot write ");
  EXPECT_EQ(report.exit_code(), 0U);
}

}  // namespace
}  // namespace ananke
