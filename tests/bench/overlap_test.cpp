// A step takes as long as its compute or its communication, whichever is longer, and what nothing can run under. By the
// exact clock, so that it holds to the last digit on any machine; by real sleep: overlap_sleep_test.cpp.
#include <gtest/gtest.h>

#include <chrono>

#include "runtime/base/error.h"
#include "tests/bench/overlap_run.h"

namespace ananke::testing {
namespace {

constexpr double most = 1.05;

OverlapReport exactly(OverlapCase c) {
  c.clock = ClockKind::exact;
  c.steps = 3;  // all are alike
  return measure_overlap(c);
}

TEST(Overlap, OfAStepIsAllThatIsNotItsBeginningAndItsEnd) {
  const std::vector<OverlapCase> cases = {
      {.name = "dense, much compute", .network = 2},
      {.name = "dense, as much of both", .network = 9},
      {.name = "dense, much communication", .network = 16},
      {.name = "experts, much compute", .experts = 8, .network = 2},
      {.name = "experts, as much of both", .experts = 8, .network = 7},
      {.name = "replicas", .mesh = {2, 2, 1}, .experts = 8, .network = 2},
      {.name = "recompute", .experts = 8, .training = "recompute: FULL", .network = 4},
      {.name = "layer-outer",
       .experts = 8,
       .training = "rows_per_microbatch: 1 microbatches_per_gather: 0",
       .tokens = 64,
       .network = 4},
      {.name = "losses of routers",
       .experts = 8,
       .model = "output_router_logits: true router_aux_loss_coef: 0.01",
       .network = 4},
      {.name = "muon", .mesh = {1, 3, 1}, .muon = true, .network = 2, .newton_schulz = 1},
  };
  for (const OverlapCase& c : cases) {
    const OverlapReport r = exactly(c);
    EXPECT_GT(r.step, std::max(r.compute, r.communication())) << c.name;
    EXPECT_LE(r.ratio(), most) << c.name << ": " << r.step << " s, compute " << r.compute << ", network " << r.network;
  }
}

// Where there is more compute than communication the network's delays show at three places alone.
TEST(Overlap, OnlyFirstGatherLastReductionAndTheNormAreUncovered) {
  for (const int experts : {0, 8}) {
    const OverlapReport r = exactly({.name = "", .experts = experts, .network = 3});
    EXPECT_NEAR(r.step - r.compute, r.first_gather + r.last_reduce + 3e-3, 1e-9) << experts << " experts";
  }
}

TEST(Overlap, ChunksLeaveOnlyTheEdgesOfEachLayersExchange) {
  double before = 1e9;
  for (const int chunks : {1, 2, 4}) {
    const OverlapCase c{
        .name = "", .mesh = {1, 4, 2}, .experts = 8, .chunks = chunks, .layer = 40, .network = 4, .nvlink = 4};
    const OverlapReport r = exactly(c);
    EXPECT_NEAR(r.step - r.compute, r.first_gather + r.last_reduce + 4e-3 + r.exchange_edges, 1e-9) << chunks;
    EXPECT_LT(r.step, before) << chunks;
    before = r.step;
    if (chunks == 4) {
      EXPECT_LE(r.ratio(), most);
    }
  }
}

TEST(Overlap, ASlowRankIsWaitedForAndNothingMore) {
  const OverlapReport even = exactly({.name = "", .experts = 8, .network = 4});
  const OverlapReport r = exactly({.name = "", .experts = 8, .network = 4, .slow_rank = 1, .slow_factor = 1.5});
  EXPECT_NEAR(r.compute, 1.5 * even.compute, 1e-9);
  EXPECT_NEAR(r.step - r.compute, even.step - even.compute, 1e-9);
}

// What the measure says of a job that hides little: every gather waits for the layer before.
TEST(Overlap, IsMissedWhereNothingIsGatheredAhead) {
  const OverlapReport r =
      exactly({.name = "", .experts = 8, .fsdp = "prefetch_blocks: 0 reduce_blocks: 0", .network = 4});
  EXPECT_GT(r.ratio(), 1.15);
}

TEST(Overlap, AFailureOnTheNetworkEndsEveryRankByName) {
  for (const int failing : {3, 60, 90}) {  // the first gathers, a forward, a backward of the second step
    const auto begin = std::chrono::steady_clock::now();
    try {
      run_until_failure({.name = "", .mesh = {1, 4, 2}, .experts = 8, .chunks = 2, .network = 2, .nvlink = 2}, 1,
                        failing, "the cable is cut");
      ADD_FAILURE() << "nothing failed at collective " << failing;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the cable is cut"), std::string::npos) << error.what();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), 60) << failing << ": it was waited for until the run's deadline";
  }
}

}  // namespace
}  // namespace ananke::testing
