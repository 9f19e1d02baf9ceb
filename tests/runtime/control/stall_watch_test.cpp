#include "runtime/control/stall_watch.h"

#include <gtest/gtest.h>

namespace ananke {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = StallWatch::Clock;

class StallWatchTest : public ::testing::Test {
 protected:
  void go(StallWatch& watch, const std::string& phase, std::uint64_t step, milliseconds takes) {
    watch.heard(phase, step, now);
    now += takes;
  }
  Clock::time_point now{};
};

TEST_F(StallWatchTest, KnowsNothingBeforeEnoughStepsHaveEnded) {
  StallWatch watch({.factor = 4, .least = milliseconds(1), .steps = 3});
  EXPECT_FALSE(watch.limit("step"));
  go(watch, "loading plugins", 0, seconds(100));
  for (std::uint64_t step = 1; step <= 3; ++step) {
    go(watch, "step", step, seconds(2));
    EXPECT_FALSE(watch.limit("step")) << step;
  }
  go(watch, "step", 4, seconds(2));
  EXPECT_EQ(watch.usual("step"), seconds(2));
  EXPECT_EQ(watch.limit("step"), seconds(8));
  EXPECT_FALSE(watch.limit("loading plugins"));
}

TEST_F(StallWatchTest, NeverLessThanTheFloorAndNothingWithoutAFactor) {
  StallWatch careful({.factor = 4, .least = seconds(60), .steps = 1}), off({.factor = 0, .least = {}, .steps = 1});
  for (std::uint64_t step = 1; step <= 5; ++step) {
    careful.heard("step", step, now);
    off.heard("step", step, now);
    now += seconds(1);
  }
  EXPECT_EQ(careful.limit("step"), seconds(60));
  EXPECT_EQ(off.usual("step"), seconds(1));
  EXPECT_FALSE(off.limit("step"));
}

// The first steps load kernels and fill caches; a single slow one is no measure either.
TEST_F(StallWatchTest, TakesTheMedian) {
  StallWatch watch({.factor = 10, .least = milliseconds(1), .steps = 4});
  std::uint64_t step = 0;
  for (const int time : {90, 3, 1, 2, 1, 50, 1, 2}) go(watch, "step", ++step, seconds(time));
  watch.heard("step", ++step, now);
  EXPECT_EQ(watch.usual("step"), seconds(2));
}

TEST_F(StallWatchTest, EvaluationsHaveTheirOwnMeasureAndCheckpointsNone) {
  StallWatch watch({.factor = 2, .least = milliseconds(1), .steps = 6});
  for (std::uint64_t step = 1; step <= 6; ++step) {
    go(watch, "step", step, seconds(1));
    if (step % 3 == 0) go(watch, "evaluation", step, seconds(20));
    if (step % 3 == 0) go(watch, "checkpoint", step, seconds(60));
  }
  EXPECT_EQ(watch.limit("step"), seconds(2));
  EXPECT_EQ(watch.limit("evaluation"), seconds(40));
  watch.heard("step", 7, now);
  EXPECT_EQ(watch.usual("checkpoint"), seconds(60));
  EXPECT_FALSE(watch.limit("checkpoint")) << "a file system that hesitates is no standstill";
}

TEST_F(StallWatchTest, StepsThatNobodySpokeOfShareTheTime) {
  StallWatch watch({.factor = 2, .least = milliseconds(1), .steps = 6});
  go(watch, "step", 1, milliseconds(40));
  go(watch, "step", 5, milliseconds(60));  // and 6, 7, which the evaluation follows
  watch.heard("evaluation", 7, now);
  EXPECT_EQ(watch.usual("step"), milliseconds(20));
}

TEST_F(StallWatchTest, AbsenceOfItsOwnerIsNoTimeOfAStep) {
  StallWatch watch({.factor = 2, .least = milliseconds(1), .steps = 1});
  go(watch, "step", 1, seconds(101));
  watch.forgive(seconds(100));
  watch.heard("step", 2, now);
  EXPECT_EQ(watch.usual("step"), seconds(1));
}

TEST(ProgressTest, AnotherItemMovesARankAndAnotherStepIsProgress) {
  const Clock::time_point begin{};
  Progress rank{begin, begin};
  rank.note(false, 3, begin + seconds(1));
  EXPECT_EQ(rank.moved, begin + seconds(1));
  EXPECT_EQ(rank.progressed, begin);
  rank.note(false, 3, begin + seconds(2));
  EXPECT_EQ(rank.moved, begin + seconds(1));
  rank.note(true, 3, begin + seconds(3));
  EXPECT_EQ(rank.moved, begin + seconds(3));
  EXPECT_EQ(rank.progressed, begin + seconds(3));
  rank.forgive(seconds(10));
  EXPECT_EQ(rank.moved, begin + seconds(13));
}

}  // namespace
}  // namespace ananke
