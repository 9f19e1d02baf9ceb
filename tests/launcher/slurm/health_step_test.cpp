// How an allocation's nodes are asked, with programs that stand in for Slurm's.
#include "launcher/slurm/health_step.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "launcher/slurm/command.h"
#include "runtime/base/error.h"
#include "tests/launcher/slurm/fake_programs.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

using Names = std::vector<std::string>;

NodeHealth node_of(const std::string& name, int checks = 40) {
  NodeHealth node;
  node.set_node(name);
  node.set_begin(1000);
  node.set_end(1001);
  node.set_verdict(PASS);
  for (int i = 0; i < checks; ++i) {
    CheckResult& check = *node.add_check();
    check.set_id(fmt::format("check.{}", i));
    check.set_verdict(PASS);
    check.set_reason("a sentence of some length about what was found\n");
  }
  return node;
}

std::string joined(const Names& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(HealthLines, ComeBackInAnyOrderAmongOtherLines) {
  Names lines;
  for (const char* name : {"a", "b"}) {
    for (const std::string& line : to_health_lines(node_of(name))) {
      EXPECT_LT(line.size(), 1000U) << "Slurm cuts longer ones";
      lines.push_back(line);
    }
  }
  EXPECT_GT(lines.size(), 4U);
  std::ranges::reverse(lines);
  lines.insert(lines.begin() + 1, "a module says hello");
  const auto answers = parse_health_lines({"b", "c", "a"}, joined(lines), "silent");
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_EQ(answers[0].health->SerializeAsString(), node_of("b").SerializeAsString());
  EXPECT_FALSE(answers[1].health);
  EXPECT_EQ(answers[1].why_not, "silent");
  EXPECT_EQ(answers[2].health->check_size(), 40);
}

TEST(HealthLines, OfEveryLengthAreWhole) {
  for (int length = 0; length < 12; ++length) {
    NodeHealth node = node_of("a", 0);
    node.set_ticket(std::string(static_cast<std::size_t>(length), '\xff'));
    node.set_ticket(std::string(static_cast<std::size_t>(length), 'x'));
    const auto answers = parse_health_lines({"a"}, joined(to_health_lines(node)), "");
    ASSERT_TRUE(answers[0].health) << length;
    EXPECT_EQ(answers[0].health->ticket().size(), static_cast<std::size_t>(length));
  }
}

TEST(HealthLines, DamagedOnesAreNoAnswer) {
  const Names lines = to_health_lines(node_of("a"));
  const auto whole = [](const Names& some) {
    return parse_health_lines({"a"}, joined(some), "x")[0].health.has_value();
  };
  EXPECT_TRUE(whole(lines));
  EXPECT_FALSE(whole({lines.begin(), lines.end() - 1}));
  Names changed = lines;
  changed[1].back() = '*';
  EXPECT_FALSE(whole(changed));
  changed = lines;
  changed.push_back(lines[0].substr(0, lines[0].size() - 4) + "AAAA");
  EXPECT_FALSE(whole(changed)) << "two that differ";
  changed = lines;
  changed.push_back(lines[0]);
  EXPECT_TRUE(whole(changed)) << "the same twice";
  for (const char* line : {"ananke-health a 0/1 AAAA", "ananke-health a 2/1 AAAA", "ananke-health a x AAAA",
                           "ananke-health a 1/1 AAA", "ananke-health a 1/1 ====", "ananke-health a 1/1 AA=A"}) {
    EXPECT_FALSE(whole({line})) << line;
  }
  EXPECT_NAMES(parse_health_lines({"a"}, "ananke-health a 1/2 AAAA\n", "late")[0].why_not,
               "not whole, or damaged; late");
}

TEST(HealthSrun, StartsOneTaskANodeAndOutlivesALostOne) {
  Site site;
  site.mutable_slurm()->add_srun_flag("--cpu-bind=none");
  const Names words = health_srun_words({"a", "b"}, site, "/opt/ananke", "jupiter", FULL);
  const auto has = [&](const std::string& word) { return std::ranges::find(words, word) != words.end(); };
  for (const char* word :
       {"srun", "--cpu-bind=none", "--nodes=2", "--nodelist=a,b", "--ntasks=2", "--ntasks-per-node=1", "--no-kill",
        "--kill-on-bad-exit=0", "--mpi=none", "health-node", "jupiter", "FULL"}) {
    EXPECT_TRUE(has(word)) << word;
  }
}

class HealthStepTest : public FakePrograms {
 protected:
  HealthStepTest() {
    site.mutable_slurm()->set_command_deadline("20s");
    site.mutable_health()->set_quick_deadline("20s");
    site.mutable_health()->set_start_deadline("20s");
    program("sinfo", "printf 'a idle\\nb down\\nc mixed\\n'");
  }
  // What srun prints for these nodes.
  std::string print(const Names& nodes) {
    std::string text;
    for (const std::string& node : nodes) text += joined(to_health_lines(node_of(node)));
    std::ofstream(file("said")) << text;
    return "cat " + file("said");
  }
  Site site;
};

TEST_F(HealthStepTest, NodesThatSlurmHasLostAreNotAskedAndAreNamed) {
  program("srun", print({"a", "c"}) + "\necho \"$@\" > " + file("words"));
  const HealthStep step = run_health_step({"a", "b", "c"}, site, "jupiter", QUICK);
  ASSERT_EQ(step.answers.size(), 3U);
  EXPECT_TRUE(step.answers[0].health && step.answers[2].health);
  EXPECT_EQ(step.answers[1].why_not, "Slurm says that it is down");
  EXPECT_NAMES(FakePrograms::text_of("words"), "--nodelist=a,c");
  EXPECT_GT(step.asked.end, step.asked.begin);
}

TEST_F(HealthStepTest, ANodeThatDoesNotReportIsNamedWithWhatSrunSays) {
  program("srun", print({"a"}) + "\necho 'srun: error: c: task 1: Killed' >&2\nexit 137");
  const HealthStep step = run_health_step({"a", "c"}, site, "jupiter", QUICK);
  EXPECT_TRUE(step.answers[0].health);
  EXPECT_EQ(step.answers[1].why_not,
            "it did not report: srun ended with exit code 137: srun: error: c: task 1: Killed");
}

TEST_F(HealthStepTest, WhatWasHeardBeforeTheDeadlineCounts) {
  site.mutable_health()->set_quick_deadline("1s");
  site.mutable_health()->set_start_deadline("0s");
  program("srun", print({"a"}) + "\nexec sleep 600");
  const HealthStep step = run_health_step({"a", "c"}, site, "jupiter", QUICK);
  EXPECT_NAMES(step.answers[1].why_not, "it did not report: `srun` did not end within 1");
  EXPECT_FALSE(step.answers[1].health);
}

}  // namespace
}  // namespace ananke
