#include "runtime/data/packed_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "runtime/data/packing_costs.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

// Documents of given lengths; tokens are not read here.
class Lengths final : public DocumentSource {
 public:
  explicit Lengths(std::vector<std::uint64_t> lengths, std::string name = "lengths", std::string tokenizer = "")
      : lengths_(std::move(lengths)), name_(std::move(name)), tokenizer_(std::move(tokenizer)) {}
  std::string name() const override { return name_; }
  std::string identity() const override { return name_; }
  std::uint64_t documents() const noexcept override { return lengths_.size(); }
  std::uint64_t length(std::uint64_t document) const override { return lengths_.at(document); }
  void read(std::uint64_t, std::uint64_t, std::span<std::int32_t>) const override {}
  std::string tokenizer() const override { return tokenizer_; }

 private:
  std::vector<std::uint64_t> lengths_;
  std::string name_, tokenizer_;
};

std::vector<std::uint64_t> random_lengths(std::uint64_t seed, std::size_t count, std::uint64_t longest) {
  const RandomKey key(seed, "lengths");
  std::vector<std::uint64_t> lengths(count);
  for (std::size_t i = 0; i < count; ++i) lengths[i] = key.below(i, longest + 1);  // 0 and 1: nothing to predict
  return lengths;
}

std::vector<PackingSource> one(std::vector<std::uint64_t> lengths, std::string name = "lengths") {
  std::vector<PackingSource> sources;
  sources.push_back({std::make_unique<Lengths>(std::move(lengths), std::move(name)), 1});
  return sources;
}

PackingOptions options(std::int64_t row_length = 20, std::int64_t rows_per_step = 6, std::uint64_t window_steps = 4,
                       std::uint64_t seed = 5) {
  return {.row_length = row_length,
          .rows_per_step = rows_per_step,
          .window_steps = window_steps,
          .open_rows = 8,
          .seed = seed};
}

TEST(PackedOrder, RefusesSourcesThatCannotBePacked) {
  EXPECT_ERROR(PackedOrder({}, options()), ErrorKind::config, "no source", "token store");
  for (const std::vector<std::uint64_t>& lengths : {std::vector<std::uint64_t>{}, {0}, {1, 1, 0}}) {
    EXPECT_ERROR(PackedOrder(one(lengths), options()), ErrorKind::data, "two tokens or more",
                 fmt::format("{} documents", lengths.size()));
  }
  for (const double weight : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    auto sources = one({5, 6});
    sources[0].weight = weight;
    EXPECT_ERROR(PackedOrder(std::move(sources), options()), ErrorKind::config, "weight", fmt::format("{}", weight));
  }
  PackingOptions many = options();
  many.rows_per_step = most_step_rows + 1;
  EXPECT_ERROR(PackedOrder(one({5, 6}), many), ErrorKind::config, "16777217 of them are more than the 16777216");
  auto sources = one({5, 6}, "first");
  sources.push_back({std::make_unique<Lengths>(std::vector<std::uint64_t>{4}, "second", "words (hash 1)"), 1});
  EXPECT_ERROR(PackedOrder(std::move(sources), options()), ErrorKind::config, "first is of no tokenizer",
               "second of words (hash 1)", "import both");
}

TEST(PackedOrder, RefusesAPositionThatIsNotItsOwnAndKeepsItsPlace) {
  PackedOrder order(one(random_lengths(1, 90, 50)), options());
  for (int i = 0; i < 7; ++i) order.next();
  const std::string good = order.position();
  for (const std::string& bad : {std::string(), std::string("sequential-1 lengths/seed:5 0 0 0 0"), good.substr(10),
                                 good.substr(0, good.find(' ', 12)) + " 0"}) {
    EXPECT_ERROR(order.restore(bad), ErrorKind::checkpoint, "not one of packing");
  }
  for (const PackingOptions& other : {options(21), options(20, 3), options(20, 6, 2), options(20, 6, 4, 6)}) {
    PackedOrder another(one(random_lengths(1, 90, 50)), other);
    EXPECT_ERROR(order.restore(another.position()), ErrorKind::checkpoint, "other data", "same seed");
  }
  PackedOrder other_data(one(random_lengths(1, 90, 50), "other"), options());
  EXPECT_ERROR(order.restore(other_data.position()), ErrorKind::checkpoint, "other data");
  const std::string head = good.substr(0, good.find(' ', 12));
  for (const char* rest : {" 0 7 0 0 0 0", " 0 25 0 0 0 0 0", " 0 7 0 1 0 0 0", " 0 7 0 0 90 0 0", " 0 7 0 0 0 1 0",
                           " 0 7 0 0 0 60 0", " 0 7 0 -1 0 0 0", " 0 7 0 0 0 0 0 0"}) {
    EXPECT_ERROR(order.restore(head + rest), ErrorKind::checkpoint, "does not exist");
  }
  EXPECT_EQ(order.position(), good);
  PackedOrder fresh(one(random_lengths(1, 90, 50)), options());
  fresh.restore(good);
  EXPECT_EQ(order.next().pieces, fresh.next().pieces);
}

TEST(RowPacker, PutsAPieceWhereItLeavesTheLeastRoom) {
  RowPacker packer(10, 3, 3);
  const auto add = [&](std::uint64_t document, std::uint32_t count) { return packer.add({document, 0, count, 0}); };
  EXPECT_TRUE(add(0, 4));
  EXPECT_TRUE(add(1, 7));  // a row of its own
  EXPECT_TRUE(add(2, 3));  // fills the second, not the first
  EXPECT_TRUE(add(3, 5));  // first: 9
  EXPECT_TRUE(add(4, 9));  // third
  EXPECT_TRUE(add(5, 1));
  EXPECT_TRUE(add(6, 1));
  EXPECT_FALSE(add(7, 1));
  const std::vector<PackedRow> rows = packer.take();
  ASSERT_EQ(rows.size(), 3u);
  for (const PackedRow& row : rows) EXPECT_EQ(row.used, 10u);
  EXPECT_EQ(rows[1].pieces, (std::vector<Piece>{{1, 0, 7, 0}, {2, 0, 3, 0}}));
  EXPECT_EQ(rows[1].squares(10), 49u + 9);
}

TEST(RowPacker, LaysOpenRowsOutAnewWhenNoneMayBeOpened) {
  RowPacker packer(10, 2, 2);
  EXPECT_TRUE(packer.add({0, 0, 3, 0}));
  EXPECT_TRUE(packer.add({1, 0, 4, 0}));
  EXPECT_TRUE(packer.add({2, 0, 6, 0}));  // a row of its own
  EXPECT_TRUE(packer.add({3, 0, 2, 0}));  // beside 3 and 4: 9 and 6 are used, so that ...
  EXPECT_TRUE(packer.add({4, 0, 5, 0}));  // fits nowhere, but 6 + 4 and 5 + 3 + 2 do
  EXPECT_FALSE(packer.add({5, 0, 1, 0}));
  for (const PackedRow& row : packer.take()) EXPECT_EQ(row.used, 10u);
}

TEST(RowPacker, CountsPaddingAsASegment) {
  RowPacker packer(10, 1, 1);
  packer.add({0, 0, 4, 0});
  EXPECT_EQ(packer.take().at(0).squares(10), 16u + 36);
}

TEST(DocumentPieces, GiveEveryInputOfAnEpochOnceInAnotherOrderEachTime) {
  const std::vector<std::uint64_t> lengths = random_lengths(3, 5000, 60);
  const Lengths source(lengths);
  DocumentPieces pieces(source, 9, "source 0", 20);
  std::vector<std::vector<std::uint64_t>> orders(2);
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::map<std::uint64_t, std::uint64_t> done;  // inputs of each document so far
    for (; pieces.place().epoch == epoch; pieces.advance()) {
      const Piece& piece = pieces.current();
      const std::uint64_t inputs = lengths[piece.document] - 1, left = inputs - piece.begin;
      EXPECT_EQ(piece.begin, done[piece.document]);
      EXPECT_EQ(piece.count, std::min<std::uint64_t>(20, left)) << "only what is longer than a row is split";
      done[piece.document] += piece.count;
      if (piece.begin == 0) orders[epoch].push_back(piece.document);
    }
    for (std::uint64_t document = 0; document < lengths.size(); ++document) {
      const std::uint64_t inputs = lengths[document] > 0 ? lengths[document] - 1 : 0;
      EXPECT_EQ(done[document], inputs) << "document " << document << ", epoch " << epoch;
    }
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_FALSE(std::is_sorted(orders[0].begin(), orders[0].end()));
}

// More than a group, the last block of the index a short one.
TEST(DocumentPieces, GoThroughAnIndexOfSeveralGroups) {
  constexpr std::uint64_t documents = DocumentPieces::block_documents * DocumentPieces::group_blocks + 3000;
  const Lengths source(std::vector<std::uint64_t>(documents, 3));
  DocumentPieces pieces(source, 9, "source 0", 20);
  std::vector<bool> seen(documents);
  std::uint64_t count = 0, groups = 0;
  for (; pieces.place().epoch == 0; pieces.advance(), ++count) {
    ASSERT_FALSE(seen[pieces.current().document]);
    seen[pieces.current().document] = true;
    groups = pieces.place().group + 1;
  }
  EXPECT_EQ(count, documents);
  EXPECT_EQ(groups, 2u);
  EXPECT_FALSE(pieces.seek({0, 2, 0, 0}));
  ASSERT_TRUE(pieces.seek({0, 1, 2000, 0}));
  DocumentPieces again(source, 9, "source 0", 20);
  ASSERT_TRUE(again.seek(pieces.place()));
  for (int i = 0; i < 2000; ++i, again.advance(), pieces.advance()) ASSERT_EQ(again.current(), pieces.current());
  EXPECT_EQ(again.place(), pieces.place());
}

using Counts = std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>;  // (document, input) -> times

void count(const PackedRow& row, Counts& counts) {
  for (const Piece& piece : row.pieces) {
    for (std::uint64_t i = 0; i < piece.count; ++i) ++counts[{piece.document, piece.begin + i}];
  }
}

TEST(PackedOrder, UsesEveryTokenOfAnEpochOnce) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    const RandomKey draw(seed, "shapes");
    const std::vector<std::uint64_t> lengths = random_lengths(seed, 20 + draw.below(0, 300), 5 + draw.below(1, 60));
    const PackingOptions how = options(8 + static_cast<std::int64_t>(draw.below(2, 30)),
                                       1 + static_cast<std::int64_t>(draw.below(3, 7)), 1 + draw.below(4, 9), seed);
    PackedOrder order(one(lengths), how);
    Counts counts;
    std::uint64_t windows = 0;
    while (windows == 0 || order.epoch(0) < 3) {
      for (std::uint64_t i = 0; i < order.window_steps() * static_cast<std::uint64_t>(how.rows_per_step); ++i) {
        const PackedRow& row = order.next();
        EXPECT_GT(row.used, 0u);
        EXPECT_LE(row.used, how.row_length);
        count(row, counts);
      }
      ++windows;
      // Where a window ends, some documents of the epoch that has begun were used.
      const std::uint64_t epoch = order.epoch(0);
      for (std::uint64_t document = 0; document < lengths.size(); ++document) {
        for (std::uint64_t i = 0; i + 1 < lengths[document]; ++i) {
          const std::uint64_t times = counts[{document, i}];
          ASSERT_TRUE(times == epoch || times == epoch + 1) << document << ": " << times << " in epoch " << epoch;
        }
      }
    }
  }
}

TEST(PackedOrder, GivesAStepRowsOfLikeCostAndShufflesTheSteps) {
  const PackingOptions how = options(64, 8, 16);
  PackedOrder order(one(random_lengths(4, 4000, 80)), how);
  ASSERT_EQ(order.window_steps(), 16u);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;  // cheapest and dearest row of each step
  int rising = 0;
  for (int step = 0; step < 16; ++step) {
    std::vector<std::uint64_t> costs;
    for (int row = 0; row < 8; ++row) costs.push_back(order.next().squares(64));
    const bool rises = std::is_sorted(costs.begin(), costs.end());
    EXPECT_TRUE(rises || std::is_sorted(costs.rbegin(), costs.rend()));
    rising += rises ? 1 : 0;
    ranges.push_back({std::min(costs.front(), costs.back()), std::max(costs.front(), costs.back())});
  }
  EXPECT_GT(rising, 0);
  EXPECT_LT(rising, 16);
  EXPECT_FALSE(std::is_sorted(ranges.begin(), ranges.end()));
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
}

TEST(PackedOrder, LetsACostSayNothingOfItsPlaceInTheRun) {
  PackedOrder order(one(random_lengths(4, 40'000, 80)), options(64, 8, 16));
  StepCosts costs(8, 8, 64);
  for (int row = 0; row < 40 * 16 * 8; ++row) costs.add_row(order.next().squares(64));
  const StepCosts::Spread spread = costs.spread();
  EXPECT_EQ(spread.steps, 640u);
  EXPECT_LT(std::abs(spread.correlation), 0.1);  // 2.5 standard deviations of what chance alone makes
  EXPECT_LT(spread.mean, 1.1);
}

TEST(PackedOrder, GoesOnWithTheSameRowsFromAnyPositionAndASecondTime) {
  const auto make = [] {
    auto sources = one(random_lengths(1, 90, 50));
    sources.push_back({std::make_unique<Lengths>(random_lengths(2, 40, 30), "second"), 0.5});
    return PackedOrder(std::move(sources), options());
  };
  PackedOrder straight = make();
  std::vector<std::string> positions;
  std::vector<std::vector<Piece>> rows;
  for (int i = 0; i < 200; ++i) {
    positions.push_back(straight.position());
    EXPECT_LT(positions.back().size(), 160u);
    rows.push_back(straight.next().pieces);
  }
  for (std::size_t from = 0; from < rows.size() - 60; from += 3) {
    PackedOrder resumed = make();
    resumed.restore(positions[from]);
    EXPECT_EQ(resumed.position(), positions[from]);
    for (std::size_t i = from; i < from + 20; ++i) ASSERT_EQ(resumed.next().pieces, rows[i]) << i << " from " << from;
    PackedOrder second = make();
    second.restore(resumed.position());
    for (std::size_t i = from + 20; i < from + 60; ++i) ASSERT_EQ(second.next().pieces, rows[i]) << i;
  }
}

TEST(PackedOrder, DrawsFromSourcesByWeight) {
  std::vector<PackingSource> sources;
  sources.push_back({std::make_unique<Lengths>(random_lengths(1, 3000, 50), "a"), 3});
  sources.push_back({std::make_unique<Lengths>(random_lengths(2, 200, 50), "b"), 1});
  PackedOrder order(std::move(sources), options(64, 8, 64));
  // An epoch of b has about 200 x 24 inputs, so a window about 4 times as many.
  EXPECT_LT(order.window_steps() * 8 * 64, 22'000u);
  EXPECT_GT(order.window_steps() * 8 * 64, 16'000u);
  std::map<std::uint32_t, double> inputs;
  for (std::uint64_t i = 0; i < order.window_steps() * 8 * 5; ++i) {
    for (const Piece& piece : order.next().pieces) inputs[piece.source] += piece.count;
  }
  EXPECT_NEAR(inputs[0] / inputs[1], 3.0, 0.01);
  EXPECT_GE(order.epoch(1), 4u);
  EXPECT_LE(order.epoch(0), 1u);
}

TEST(PackedOrder, DependsOnTheSeed) {
  PackedOrder a(one(random_lengths(1, 90, 50)), options()), b(one(random_lengths(1, 90, 50)), options(20, 6, 4, 6));
  std::vector<std::vector<Piece>> of_a, of_b;
  for (int i = 0; i < 24; ++i) of_a.push_back(a.next().pieces), of_b.push_back(b.next().pieces);
  EXPECT_NE(of_a, of_b);
}

TEST(PackedOrder, PadsLittleWhereSomeDocumentsAreShort) {
  PackingOptions how = options(512, 16, 16);
  how.open_rows = 128;
  PackedOrder order(one(random_lengths(8, 20'000, 200)), how);
  std::uint64_t used = 0;
  constexpr std::uint64_t rows = 16 * 16 * 4;
  for (std::uint64_t i = 0; i < rows; ++i) used += order.next().used;
  EXPECT_GT(static_cast<double>(used) / (rows * 512), 0.995);
}

TEST(StepCosts, AreTheWorstRankOverTheMean) {
  StepCosts costs(4, 2, 10, 3);                                                 // 30 for the rest of each row
  for (const std::uint64_t squares : {10, 20, 30, 40}) costs.add_row(squares);  // 10 + 30, 20 + 40: 100 and 120 with it
  for (const std::uint64_t squares : {70, 70, 70, 70}) costs.add_row(squares);
  costs.add_row(1'000'000);  // of a step that is not whole
  const StepCosts::Spread spread = costs.spread();
  EXPECT_EQ(spread.steps, 2u);
  EXPECT_NEAR(spread.mean, (120.0 / 110 + 1) / 2, 1e-12);
  EXPECT_NEAR(spread.median, 1.0, 1e-12);
  EXPECT_NEAR(spread.p99, 120.0 / 110, 1e-12);
  EXPECT_NEAR(spread.largest, 120.0 / 110, 1e-12);
  EXPECT_NEAR(spread.correlation, 1.0, 1e-12);  // of two steps, the second costs more
  EXPECT_EQ(StepCosts(4, 2, 10).spread().steps, 0u);
}

TEST(SequentialRows, AreCutWhereTheyEnd) {
  SequentialRows rows(10);
  std::vector<std::uint64_t> squares;
  const auto each = [&](std::uint64_t s) { squares.push_back(s); };
  rows.add({0, 0, 4, 0}, each);
  rows.add({1, 0, 10, 0}, each);  // 6 in the first row, 4 in the second
  rows.add({1, 10, 3, 0}, each);  // the same document goes on: 7 together
  rows.add({2, 0, 3, 0}, each);
  EXPECT_EQ(squares, (std::vector<std::uint64_t>{16 + 36, 49 + 9}));
}

}  // namespace
}  // namespace ananke
