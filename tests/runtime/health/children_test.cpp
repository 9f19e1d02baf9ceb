#include "runtime/health/children.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "tests/refusal.h"

namespace ananke {
namespace {

using End = ChildOutcome::End;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::chrono::steady_clock::time_point in(milliseconds time) { return std::chrono::steady_clock::now() + time; }

TEST(Children, WhatOneDoesReachesNoOther) {
  const std::vector<ChildTask> tasks = {
      {seconds(60), [] { return std::string("fine"); }},
      {seconds(60), []() -> std::string { fail(ErrorKind::resource, "no such file"); }},
      {seconds(60), []() -> std::string { std::abort(); }},
      {milliseconds(50),
       []() -> std::string {
         for (;;) pause();
       }},
      {seconds(60), [] { return std::string(1 << 20, 'x'); }},
      {seconds(60), []() -> std::string { _exit(3); }},
      {seconds(60), []() -> std::string { throw 7; }},
  };
  const std::vector<ChildOutcome> outcomes = run_children(tasks, 3, in(seconds(60)));
  ASSERT_EQ(outcomes.size(), tasks.size());
  EXPECT_EQ(outcomes[0].end, End::done);
  EXPECT_EQ(outcomes[0].output, "fine");
  EXPECT_EQ(outcomes[1].end, End::threw);
  EXPECT_EQ(outcomes[1].output, "no such file");
  EXPECT_EQ(outcomes[2].end, End::crashed);
  EXPECT_NAMES(outcomes[2].output, "signal 6");
  EXPECT_EQ(outcomes[3].end, End::late);
  EXPECT_GE(outcomes[3].seconds, 0.05);
  EXPECT_EQ(outcomes[4].output.size(), std::size_t{1} << 20);
  EXPECT_EQ(outcomes[5].end, End::crashed);
  EXPECT_EQ(outcomes[6].end, End::threw);
}

// One that ignores what it can ignore.
TEST(Children, AStubbornOneIsKilled) {
  const ChildTask stubborn{milliseconds(50), []() -> std::string {
                             signal(SIGTERM, SIG_IGN);
                             for (;;) pause();
                           }};
  EXPECT_EQ(run_children({stubborn}, 1, in(seconds(60))).front().end, End::late);
}

TEST(Children, NoneLastsPastTheEnd) {
  const ChildTask sleeper{seconds(60), []() -> std::string {
                            for (;;) pause();
                          }};
  const auto outcomes = run_children({sleeper, sleeper}, 1, in(seconds(1)));
  EXPECT_EQ(outcomes[0].end, End::late);
  EXPECT_EQ(outcomes[1].end, End::not_begun);
}

TEST(Children, ThereMayBeNone) { EXPECT_TRUE(run_children({}, 4, in(seconds(1))).empty()); }

}  // namespace
}  // namespace ananke
