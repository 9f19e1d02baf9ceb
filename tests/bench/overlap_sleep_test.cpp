// What overlap_test.cpp shows by the exact clock, by real sleep: needs a machine that has nothing else to do.
#include <gtest/gtest.h>

#include "tests/bench/overlap_run.h"

namespace ananke::testing {
namespace {

TEST(OverlapSleep, HoldsByRealSleep) {
  OverlapCase c{.name = "", .experts = 8, .layer = 60, .head = 60, .network = 6};
  c.clock = ClockKind::exact;
  const double compute = measure_overlap(c).compute;
  c.clock = ClockKind::sleeping;
  OverlapReport r;
  for (int attempt = 0; attempt < 3; ++attempt) {  // a busy machine makes a step longer, never shorter
    r = measure_overlap(c);
    EXPECT_GE(r.step, compute);
    if (r.ratio() <= 1.05) return;
  }
  ADD_FAILURE() << "step " << r.step << " s, bound " << r.bound() << " s, compute " << r.compute << " s";
}

}  // namespace
}  // namespace ananke::testing
