// Token exchange between ranks that are threads: the same as one rank that has all tokens and experts.
#include <array>
#include <condition_variable>
#include <mutex>

#include "tests/patience.h"
#include "tests/plugins/ep/compare.h"
#include "tests/refusal.h"

namespace ananke::testing {
namespace {

void expect_as_one_rank(const LayerCase& c, int chunks) {
  SCOPED_TRACE(::testing::Message() << c.tokens.size() << " ranks, " << c.all() << " tokens, " << c.experts
                                    << " experts, k " << c.k << ", " << chunks << " chunks, recompute " << c.recompute);
  const std::string config = "chunks: " + std::to_string(chunks);
  const LayerRun run = run_ep(c, config), host = run_ep(c, with(config, Counts::host));
  expect_same_layers(run, run_local(c), 3e-6);
  expect_well_behaved(run, c, chunks, DType::f32);
  expect_well_behaved(host, c, chunks, DType::f32, Counts::host);
  expect_same_bits(run, host);
}

TEST(Ep, RefusesAChunkWhoseRowsCannotBeCounted) {
  const ExpertSizes huge{.tokens = 1 << 24, .hidden = 1, .experts = 256, .k = 8, .ranks = 64};
  EXPECT_ERROR(ep::capacity_of(huge, 1), ErrorKind::config, "ep", "16777216 tokens", "64 ranks", "4294967296 rows",
               "plugins.ep.chunks");
  EXPECT_EQ(ep::capacity_of(huge, 8).rows, (std::int64_t{1} << 21) * 64 * 4);
}

TEST(Ep, HoldsTheWorstCaseOfAChunkAndNothingWhereNoExpertIs) {
  const ExpertSizes s{.tokens = 100, .hidden = 8, .experts = 3, .k = 2, .ranks = 4, .rank = 0};
  ExpertSizes none = s;
  none.rank = 3;
  for (int rank = 0; rank < 4; ++rank) {
    none.rank = rank;
    if (none.local().count == 0) break;
  }
  ASSERT_EQ(none.local().count, 0);
  EXPECT_EQ(ep::capacity_of(s, 3).tokens, 34);
  EXPECT_EQ(ep::capacity_of(s, 3).sent, 68);
  EXPECT_EQ(ep::capacity_of(s, 3).rows, 34 * 4);
  EXPECT_EQ(ep::capacity_of(none, 3).rows, 0);
  EXPECT_EQ(ep::buffers_of(none, 3, DType::f32).receive_tokens, 0);
}

TEST(Ep, IsTheSameAsOneRank) {
  for (const bool recompute : {false, true}) {
    for (const int chunks : {1, 2, 3, 8}) {
      expect_as_one_rank({.tokens = {9, 14, 7, 11}, .experts = 8, .k = 3, .recompute = recompute, .layers = 3}, chunks);
    }
  }
}

TEST(Ep, IsExactWithoutTokensOnSomeRanksOrAll) {
  expect_as_one_rank({.tokens = {0, 13}, .layers = 2}, 2);
  expect_as_one_rank({.tokens = {5, 0, 0, 1}, .experts = 5, .k = 2, .recompute = true, .layers = 2}, 3);
  expect_as_one_rank({.tokens = {0, 0}, .most = 10}, 2);
}

TEST(Ep, IsExactWithAllTokensOnOneExpert) {
  expect_as_one_rank({.tokens = {12, 17, 5, 8}, .experts = 8, .k = 1, .skew = 3, .layers = 2}, 2);
  expect_as_one_rank({.tokens = {12, 17}, .experts = 4, .k = 2, .skew = 4, .recompute = true}, 3);
}

TEST(Ep, IsExactWithFewerExpertsThanRanksAndUnequalShares) {
  expect_as_one_rank({.tokens = {6, 7, 3, 4}, .experts = 2, .k = 2}, 2);
  expect_as_one_rank({.tokens = {6, 7, 3, 4}, .experts = 1, .k = 1, .recompute = true}, 2);
  expect_as_one_rank({.tokens = {6, 7, 3}, .experts = 7, .k = 5}, 2);
}

TEST(Ep, WorksOnAnAxisOfOne) { expect_as_one_rank({.tokens = {23}, .experts = 5, .k = 2, .layers = 2}, 3); }

TEST(Ep, WithMoreChunksThanTokensSendsEmptyOnes) {
  expect_as_one_rank({.tokens = {2, 1}, .layers = 2}, 7);
  expect_as_one_rank({.tokens = {2, 1}, .recompute = true, .layers = 2}, 7);
}

// A microbatch may be smaller than planned: the chunks stay where they were.
TEST(Ep, TakesFewerTokensThanPlanned) { expect_as_one_rank({.tokens = {3, 8}, .most = 40, .layers = 2}, 4); }

TEST(Ep, SendsOneCopyToARankHoweverManyOfItsExpertsAreChosen) {
  // All 4 choices lie on one of 2 ranks.
  const LayerCase c{.tokens = {16, 16}, .experts = 8, .k = 4, .groups = 2};
  const LayerRun run = run_ep(c, "chunks: 2");
  expect_well_behaved(run, c, 2, DType::f32);
  std::uint64_t dispatched = 0;
  for (const RankReport& report : run.ranks) dispatched += bytes_of(report.traffic, Direction::dispatch);
  const WireRow row =
      ep::buffers_of({.tokens = 1, .hidden = c.hidden, .experts = c.experts, .k = c.k}, 1, DType::f32).token;
  EXPECT_LE(dispatched, static_cast<std::uint64_t>(c.all() * row.bytes())) << "at most one copy of a token travels";
}

TEST(Ep, RoundsOnlyWhatTravelsInBf16) {
  const LayerCase c{.tokens = {33, 20, 41}, .experts = 6, .k = 2, .hidden = 24, .layers = 2};
  const LayerRun run = run_ep(c, "wire: BF16"), one = run_local(c);
  expect_same_layers(run, one, 3e-2);
  expect_well_behaved(run, c, 2, DType::bf16);
  EXPECT_GT(difference(run.layers[0].y, one.layers[0].y), 1e-5) << "nothing was rounded";
  expect_same_bits(run_ep(c, "wire: BF16"), run);
  expect_same_bits(run_ep(c, "wire: BF16 counts: HOST"), run);
}

TEST(Ep, GivesTheSameBitsInEveryRunAndWithRecompute) {
  LayerCase c{.tokens = {33, 20, 41, 7}, .experts = 6, .k = 3, .layers = 2};
  const LayerRun first = run_ep(c, "chunks: 3"), second = run_ep(c, "chunks: 3");
  c.recompute = true;
  const LayerRun recomputed = run_ep(c, "chunks: 3");
  expect_same_bits(second, first);
  expect_same_bits(recomputed, first);
}

// The experts of a chunk wait until the next chunk's exchange is over: that ends only if it runs meanwhile.
void expect_overlap(const LayerCase& c, int chunks, Counts counts) {
  SCOPED_TRACE(::testing::Message() << c.recompute << (counts == Counts::host ? ", host counts" : ""));
  const int told = counts == Counts::host ? 1 : 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> ended(c.tokens.size());
  bool in_time = true;
  LayerHooks hooks;
  hooks.exchange_ended = [&](int rank, Stream& exchange, std::int64_t) {
    exchange.run_on_host([&, rank] {
      std::lock_guard lock(mutex);
      ++ended[static_cast<std::size_t>(rank)];
      changed.notify_all();
    });
  };
  hooks.mlp_begins = [&](int rank, Stream& compute, int chunk, bool backward) {
    if (chunk + 1 == chunks) return;        // nothing follows
    const int forward = told + 2 * chunks;  // exchanges: the counts, and two of each chunk
    const int before = backward ? forward + (c.recompute ? told : 0) : told;
    const int outwards = backward && c.recompute ? 2 : 1;  // that a chunk needs
    const int wanted = before + outwards * (chunk + 2) + chunk;
    compute.run_on_host([&, rank, wanted] {
      std::unique_lock lock(mutex);
      const auto over = [&] { return ended[static_cast<std::size_t>(rank)] >= wanted; };
      in_time = changed.wait_for(lock, test_patience, over) && in_time;
    });
  };
  const LayerRun run = sweep({static_cast<int>(c.tokens.size()), 1, [&](int) { return c; },
                              [&](int) { return with("chunks: " + std::to_string(chunks), counts); }, hooks})[0];
  EXPECT_TRUE(in_time) << "the next chunk did not come while one was computed";
  expect_same_layers(run, run_local(c), 3e-6);
}

TEST(Ep, TheNextChunkTravelsWhileOneIsComputed) {
  for (const Counts counts : {Counts::device, Counts::host}) {
    expect_overlap({.tokens = {16, 24}}, 4, counts);
    expect_overlap({.tokens = {16, 24, 0}, .recompute = true}, 4, counts);
  }
}

}  // namespace
}  // namespace ananke::testing
