#include "runtime/engine/slow_rank.h"

#include <gtest/gtest.h>

#include "ananke/telemetry.pb.h"

namespace ananke {
namespace {

StepRecord step_of(std::uint64_t step, double straggler, std::uint32_t rank) {
  StepRecord record;
  record.set_step(step);
  record.mutable_work()->set_straggler(straggler);
  record.mutable_work()->set_straggler_rank(rank);
  return record;
}

TEST(SlowRankWatch, IsSilentWhereNothingIsMeasuredOrNobodyStandsOut) {
  SlowRankWatch watch;
  StepRecord unmeasured;
  for (std::uint64_t step = 1; step <= 3 * SlowRankWatch::again; ++step) {
    unmeasured.set_step(step);
    EXPECT_FALSE(watch.see(unmeasured));
    EXPECT_FALSE(watch.see(step_of(step, 1.2, 3)));
  }
}

TEST(SlowRankWatch, NamesARankThatIsSlowTimeAndAgainOnce) {
  SlowRankWatch watch;
  std::uint64_t step = 0;
  const auto slow = [&](std::uint32_t rank) { return watch.see(step_of(++step, 1.3, rank)); };
  for (int i = 1; i < SlowRankWatch::again; ++i) EXPECT_FALSE(slow(0));
  EXPECT_FALSE(slow(2)) << "another rank: counted anew";
  for (int i = 2; i < SlowRankWatch::again; ++i) EXPECT_FALSE(slow(2));
  EXPECT_EQ(slow(2), 2u);
  EXPECT_FALSE(slow(2)) << "told already";
  EXPECT_FALSE(watch.see(step_of(++step, 1.0, 2)));
  for (int i = 0; i < 3 * SlowRankWatch::again; ++i) EXPECT_FALSE(slow(2)) << "told already, though it had recovered";
  for (int i = 1; i < SlowRankWatch::again; ++i) EXPECT_FALSE(slow(1));
  EXPECT_EQ(slow(1), 1u) << "not told yet";
}

TEST(SlowRankWatch, TellsAgainAfterALongTime) {
  SlowRankWatch watch;
  std::vector<std::uint64_t> told;
  for (std::uint64_t step = 1; step <= 2 * SlowRankWatch::repeat + 100; ++step) {
    if (watch.see(step_of(step, 2, 5))) told.push_back(step);
  }
  const std::uint64_t first = SlowRankWatch::again;
  EXPECT_EQ(told,
            (std::vector<std::uint64_t>{first, first + SlowRankWatch::repeat, first + 2 * SlowRankWatch::repeat}));
}

}  // namespace
}  // namespace ananke
