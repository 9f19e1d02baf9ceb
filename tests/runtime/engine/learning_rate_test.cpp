#include "runtime/engine/learning_rate.h"

#include <gtest/gtest.h>

#include "ananke/job.pb.h"

namespace ananke {
namespace {

TEST(LearningRate, RisesLinearlyThenHolds) {
  LearningRate schedule;
  schedule.set_warmup_steps(10);
  EXPECT_DOUBLE_EQ(learning_rate_factor(schedule, 100, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(schedule, 100, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(schedule, 100, 100), 1);
}

TEST(LearningRate, WarmupStableDecayEndsAtTheMinimum) {
  LearningRate schedule;
  schedule.set_shape(LearningRate::WARMUP_STABLE_DECAY);
  schedule.set_warmup_steps(4);
  schedule.set_decay_steps(20);
  schedule.set_minimum_factor(0.1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(schedule, 100, 80), 1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(schedule, 100, 90), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate_factor(schedule, 100, 100), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(schedule, 100, 200), 0.1);
}

TEST(LearningRate, CosineFallsFromTheEndOfTheWarmup) {
  LearningRate schedule;
  schedule.set_shape(LearningRate::COSINE);
  schedule.set_warmup_steps(10);
  schedule.set_minimum_factor(0.2);
  EXPECT_DOUBLE_EQ(learning_rate_factor(schedule, 110, 10), 1);
  EXPECT_NEAR(learning_rate_factor(schedule, 110, 60), 0.6, 1e-12);
  EXPECT_NEAR(learning_rate_factor(schedule, 110, 110), 0.2, 1e-12);
}

TEST(LearningRate, TotalStepsReplaceTheJobsLength) {
  LearningRate schedule;
  schedule.set_shape(LearningRate::COSINE);
  schedule.set_total_steps(1000);
  EXPECT_NEAR(learning_rate_factor(schedule, 10, 500), 0.5, 1e-12);
}

}  // namespace
}  // namespace ananke
