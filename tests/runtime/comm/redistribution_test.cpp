#include "runtime/comm/redistribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/refusal.h"

namespace ananke {
namespace {

using Parts = std::vector<std::vector<ArrayPart>>;

TEST(Redistribution, RefusesListsThatDoNotHoldEveryElementOnce) {
  const std::vector<std::int64_t> sizes = {6, 4};
  const Parts whole = {{{0, 0, 6}}, {{1, 0, 4}}};
  const auto plan = [&](const Parts& before, const Parts& after) { plan_routes(sizes, before, after); };
  EXPECT_ERROR(plan({{{0, 0, 5}}, {{1, 0, 4}}}, whole), ErrorKind::internal,
               "element 5 of array 0 is on no rank before");
  EXPECT_ERROR(plan({{{0, 1, 5}}, {{1, 0, 4}}}, whole), ErrorKind::internal,
               "element 0 of array 0 is on no rank before");
  EXPECT_ERROR(plan(whole, {{{0, 0, 6}}, {{1, 0, 2}, {1, 3, 1}}}), ErrorKind::internal,
               "element 2 of array 1 is on no rank after");
  EXPECT_ERROR(plan({{{0, 0, 6}, {1, 0, 1}}, {{1, 0, 4}}}, whole), ErrorKind::internal,
               "element 0 of array 1 is on two ranks before");
  EXPECT_ERROR(plan(whole, {{{0, 0, 4}}, {{0, 3, 3}, {1, 0, 4}}}), ErrorKind::internal,
               "element 3 of array 0 is on two ranks after");
  EXPECT_ERROR(plan({{{0, 0, 7}}, {{1, 0, 4}}}, whole), ErrorKind::internal,
               "rank 0 holds 7 elements from 0 on of array 0 before, which has 6");
  EXPECT_ERROR(plan({{{0, -1, 7}}, {{1, 0, 4}}}, whole), ErrorKind::internal, "from -1 on");
  EXPECT_ERROR(plan({{{0, 0, 6}, {1, 0, 0}}, {{1, 0, 4}}}, whole), ErrorKind::internal, "holds 0 elements");
  EXPECT_ERROR(plan({{{0, 0, 6}}, {{2, 0, 4}}}, whole), ErrorKind::internal, "array 2 of 2");
}

// Three matrices 4 x 3 as two shards of 6 rows, the middle one cut, to the owners 0, 1, 0.
TEST(Redistribution, MovesAMatrixThatABoundaryCuts) {
  const std::vector<std::int64_t> sizes = {12, 12, 12};
  const Parts before = {{{0, 0, 12}, {1, 0, 6}}, {{1, 6, 6}, {2, 0, 12}}};
  const Parts after = {{{0, 0, 12}, {2, 0, 12}}, {{1, 0, 12}}};
  const std::vector<Route> routes = plan_routes(sizes, before, after);
  ASSERT_EQ(routes.size(), 4u);
  const Redistribution first(routes, 2, 0), second(routes, 2, 1);
  ASSERT_EQ(first.sent().size(), 2u);
  EXPECT_EQ(first.sent()[0].peer, 0);
  EXPECT_EQ(first.sent()[1].what.array, 1);
  EXPECT_EQ(first.sent()[1].what.count, 6);
  EXPECT_EQ(first.sent()[1].offset, 12);
  ASSERT_EQ(first.received().size(), 2u);
  EXPECT_EQ(first.received()[1].what.array, 2);
  EXPECT_EQ(first.received()[1].peer, 1);
  EXPECT_EQ(first.received_elements(), 24);
  ASSERT_EQ(second.received().size(), 2u);
  EXPECT_EQ(second.received()[0].what.begin, 0);
  EXPECT_EQ(second.received()[1].what.begin, 6);
  EXPECT_EQ(second.received()[1].offset, 6);
  EXPECT_EQ(second.sent_elements(), 18);
}

Parts random_parts(std::mt19937& engine, const std::vector<std::int64_t>& sizes, int ranks) {
  const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(engine() % static_cast<unsigned>(end)); };
  Parts parts(static_cast<std::size_t>(ranks));
  for (std::size_t array = 0; array < sizes.size(); ++array) {
    for (std::int64_t begin = 0; begin < sizes[array];) {
      const std::int64_t count = 1 + below(sizes[array] - begin);
      parts[static_cast<std::size_t>(below(ranks))].push_back({static_cast<int>(array), begin, count});
      begin += count;
    }
  }
  for (auto& list : parts) std::shuffle(list.begin(), list.end(), engine);
  return parts;
}

// Plays the exchange with plain copies: every element arrives once where it is meant to be.
TEST(Redistribution, BringsEveryElementOfRandomListsToItsPlace) {
  std::mt19937 engine(11);
  for (int run = 0; run < 200; ++run) {
    const int ranks = 1 + static_cast<int>(engine() % 6);
    std::vector<std::int64_t> sizes(engine() % 5);
    for (std::int64_t& size : sizes) size = static_cast<std::int64_t>(engine() % 40);
    const Parts before = random_parts(engine, sizes, ranks), after = random_parts(engine, sizes, ranks);
    const std::vector<Route> routes = plan_routes(sizes, before, after);
    std::vector<std::vector<int>> arrived(sizes.size());
    for (std::size_t array = 0; array < sizes.size(); ++array)
      arrived[array].resize(static_cast<std::size_t>(sizes[array]));
    for (int to = 0; to < ranks; ++to) {
      const Redistribution receiver(routes, ranks, to);
      std::int64_t offset = 0;
      int last_peer = 0;
      for (const Redistribution::Piece& piece : receiver.received()) {
        EXPECT_EQ(piece.offset, offset);
        EXPECT_GE(piece.peer, last_peer);
        offset += piece.what.count;
        last_peer = piece.peer;
        const auto& targets = after[static_cast<std::size_t>(to)];
        EXPECT_TRUE(std::any_of(targets.begin(), targets.end(), [&](const ArrayPart& part) {
          return part.array == piece.what.array && part.begin <= piece.what.begin &&
                 piece.what.begin + piece.what.count <= part.begin + part.count;
        }));
        for (std::int64_t i = 0; i < piece.what.count; ++i) {
          ++arrived[static_cast<std::size_t>(piece.what.array)][static_cast<std::size_t>(piece.what.begin + i)];
        }
        // The sender packs the same piece, in the same order among those for this rank.
        const Redistribution sender(routes, ranks, piece.peer);
        EXPECT_TRUE(std::any_of(sender.sent().begin(), sender.sent().end(), [&](const Redistribution::Piece& s) {
          return s.peer == to && s.what.array == piece.what.array && s.what.begin == piece.what.begin &&
                 s.what.count == piece.what.count;
        }));
      }
      EXPECT_EQ(receiver.received_elements(), offset);
    }
    for (const std::vector<int>& counts : arrived) {
      EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; }));
    }
  }
}

}  // namespace
}  // namespace ananke
