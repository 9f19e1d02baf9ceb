#include "launcher/first_cause.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ananke {
namespace {

using What = Cause::What;
using std::chrono::milliseconds;

const FirstCause::Clock::time_point begin{};

Cause killed(int rank, int signal) { return {.what = What::killed, .rank = rank, .number = signal}; }
Cause reported(int rank, ErrorKind kind) { return {.what = What::reported, .rank = rank, .kind = kind}; }

TEST(FirstCause, ADeathBeatsEarlierComplaintsAboutAPeer) {
  FirstCause causes;
  causes.add(reported(0, ErrorKind::worker_failed), begin);
  causes.add(reported(1, ErrorKind::stalled), begin + milliseconds(1));
  EXPECT_EQ(causes.result().rank, 0);
  const auto patient = *causes.settled_at();
  causes.add(killed(2, SIGKILL), begin + milliseconds(400));
  EXPECT_EQ(causes.result().rank, 2);
  EXPECT_LT(*causes.settled_at(), patient);
}

TEST(FirstCause, TheEarlierOfTwoThatStandOnTheirOwnWins) {
  FirstCause causes;
  causes.add(reported(3, ErrorKind::numeric), begin);
  causes.add(killed(1, SIGSEGV), begin + milliseconds(100));
  EXPECT_EQ(causes.result().rank, 3);
}

TEST(FirstCause, AnAbortAtTheSameTimeIsTheConsequence) {
  FirstCause causes;
  causes.add(killed(0, SIGABRT), begin);
  causes.add(killed(1, SIGKILL), begin + milliseconds(10));
  EXPECT_EQ(causes.result().rank, 1);
  FirstCause later;
  later.add(killed(0, SIGABRT), begin);
  later.add(killed(1, SIGKILL), begin + milliseconds(100));
  EXPECT_EQ(later.result().rank, 0);
}

TEST(FirstCause, ARankThatIsInsideAPluginBeatsOnesThatWaitForIt) {
  Cause waits{.what = What::no_progress, .rank = 0, .kind = ErrorKind::stalled, .message = "6.0 s"};
  waits.activity = "backend plugin 'b' (/b.so), in all_reduce";
  waits.waits = true;
  FirstCause causes;
  causes.add(waits, begin);
  const auto patient = *causes.settled_at();
  EXPECT_EQ(describe(causes.result()),
            "rank 0 made no progress for 6.0 s, waiting in backend plugin 'b' (/b.so), in all_reduce");
  Cause inside = waits;
  inside.rank = 1;
  inside.activity = "optimizer plugin 'o' (/o.so), in update";
  inside.waits = false;
  causes.add(inside, begin + milliseconds(700));
  EXPECT_EQ(describe(causes.result()),
            "rank 1 made no progress for 6.0 s inside optimizer plugin 'o' (/o.so), in update");
  EXPECT_LT(*causes.settled_at(), patient);
}

TEST(FirstCause, OfRanksThatAllWaitTheOneBehindIsTheCauseWhoeverWasHeardFirst) {
  FirstCause causes;
  const auto waits = [](int rank, std::uint64_t step, std::uint64_t place) {
    return Cause{.what = What::no_progress,
                 .rank = rank,
                 .kind = ErrorKind::stalled,
                 .waits = true,
                 .step = step,
                 .place = place};
  };
  causes.add(waits(0, 17, 8), begin);
  causes.add(waits(2, 17, 5), begin + milliseconds(300));
  causes.add(waits(1, 17, 8), begin + milliseconds(400));
  EXPECT_EQ(causes.result().rank, 2);
  causes.add(waits(3, 16, 9), begin + milliseconds(500));
  EXPECT_EQ(causes.result().rank, 3);
  causes.add(killed(4, SIGKILL), begin + milliseconds(600));
  EXPECT_EQ(causes.result().rank, 4);
}

TEST(FirstCause, TellsTheItemOfAStall) {
  const Cause cause{.what = What::no_progress,
                    .rank = 2,
                    .message = "2 min 5 s",
                    .phase = "step",
                    .step = 17,
                    .item = "item 5 of 9, layer.1 forward, microbatch 0"};
  EXPECT_EQ(
      describe(cause),
      "rank 2 made no progress for 2 min 5 s (phase 'step', step 17, item 5 of 9, layer.1 forward, microbatch 0)");
}

TEST(FirstCause, WhatFollowsFromTheSameRankIsItsConsequence) {
  FirstCause causes;
  causes.add(reported(0, ErrorKind::worker_failed), begin);
  causes.add(killed(0, SIGABRT), begin + milliseconds(5));
  EXPECT_EQ(causes.result().what, What::reported);
  FirstCause lost;
  lost.add({.what = What::disconnected, .rank = 0}, begin);
  lost.add(killed(0, SIGKILL), begin + milliseconds(5));
  EXPECT_EQ(lost.result().what, What::killed);
}

TEST(FirstCause, IsDescribedInOneSentence) {
  Cause cause = killed(2, SIGKILL);
  cause.host = "node1";
  cause.process = 77;
  cause.phase = "step";
  cause.step = 17;
  EXPECT_EQ(describe(cause), "rank 2 (node1, process 77) was killed by signal 9 (SIGKILL) (phase 'step', step 17)");
}

}  // namespace
}  // namespace ananke
