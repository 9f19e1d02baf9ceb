#include "runtime/data/sequential_batches.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "ananke/job.pb.h"
#include "runtime/data/generated_documents.h"
#include "tests/refusal.h"
#include "tests/runtime/data/listed_documents.h"

namespace ananke {
namespace {

using Tokens = std::vector<std::int32_t>;

SequentialBatches batches(const Documents& documents, std::int64_t row_length, bool endless, int rank = 0,
                          int ranks = 1, std::uint64_t seed = 7) {
  return SequentialBatches(std::make_unique<ListedDocuments>(documents),
                           {.row_length = row_length, .seed = seed, .endless = endless, .rank = rank, .ranks = ranks});
}

// Random documents; every token occurs once, so that a target names its place. Some are empty or of one token.
Documents random_documents(std::uint64_t seed) {
  const RandomKey key(seed, "documents");
  Documents documents(1 + key.below(0, 12));
  std::int32_t next = 0;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    documents[d].resize(key.below(d + 1, d % 3 == 0 ? 3 : 40));
    for (std::int32_t& token : documents[d]) token = next++;
  }
  documents.push_back({next, next + 1});  // never nothing to predict
  return documents;
}

TEST(SequentialBatches, RefusesASourceWithNothingToPredict) {
  for (const Documents& documents : {Documents{}, Documents{{}}, Documents{{1}, {2}, {}}}) {
    EXPECT_NAMES(refusal(ErrorKind::data, [&] { batches(documents, 4, true); }), "two tokens or more");
  }
}

TEST(SequentialBatches, RefusesAPositionThatIsNotItsOwn) {
  SequentialBatches source = batches({{1, 2, 3}, {4, 5}}, 4, true);
  const std::string good = source.position();
  const auto refused = [&](const std::string& position) {
    return refusal(ErrorKind::checkpoint, [&] { source.restore(position); });
  };
  for (const char* bad : {"", "x", "sequential-1", "packing-1 a 0 0 0 0"})
    EXPECT_NAMES(refused(bad), "not one of the built-in");
  EXPECT_NAMES(refused(good + " 1"), "not one of the built-in");
  EXPECT_NAMES(refused("sequential-1 listed/seed:8 0 0 0 0"), "same seed");
  EXPECT_NAMES(refused("sequential-1 other/seed:7 0 0 0 0"), "other data");
  EXPECT_NAMES(refused("sequential-1 listed/seed:7 0 3 0 0"), "does not exist");
  EXPECT_NAMES(refused("sequential-1 listed/seed:7 0 2 1 0"), "does not exist");
  EXPECT_NAMES(refused("sequential-1 listed/seed:7 0 0 9 0"), "does not exist");
  EXPECT_NAMES(refused("sequential-1 listed/seed:7 0 -1 0 0"), "does not exist");
  EXPECT_EQ(source.position(), good);  // a refused position changes nothing
}

TEST(SequentialBatches, PutsTwoDocumentsInARowWithoutCrossingThem) {
  SequentialBatches source = batches({{1, 2, 3, 0}, {4, 5, 0}}, 5, false);
  Rows rows;
  ASSERT_TRUE(source.next(1, rows));
  EXPECT_EQ(rows.tokens, (Tokens{1, 2, 3, 4, 5}));
  EXPECT_EQ(rows.targets, (Tokens{2, 3, 0, 5, 0}));
  EXPECT_EQ(rows.positions, (Tokens{0, 1, 2, 0, 1}));
  EXPECT_EQ(rows.segments, (std::vector<Tokens>{{0, 3}}));
  EXPECT_EQ(rows.valid_targets, 5);
  EXPECT_FALSE(source.next(1, rows));
  EXPECT_EQ(rows.rows, 0);
}

TEST(SequentialBatches, ContinuesACutDocumentAndMasksTheLastRow) {
  SequentialBatches source = batches({{1, 2, 3, 4, 5, 6}, {9}, {7, 8}}, 3, false);
  Rows rows;
  ASSERT_TRUE(source.next(5, rows));
  EXPECT_EQ(rows.rows, 2);
  EXPECT_EQ(rows.tokens, (Tokens{1, 2, 3, 4, 5, 7}));
  EXPECT_EQ(rows.targets, (Tokens{2, 3, 4, 5, 6, 8}));
  EXPECT_EQ(rows.positions, (Tokens{0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(rows.segments, (std::vector<Tokens>{{0}, {0, 2}}));
  SequentialBatches longer = batches({{1, 2, 3, 4, 5, 6}, {7, 8}}, 4, false);
  ASSERT_TRUE(longer.next(2, rows));
  EXPECT_EQ(rows.tokens, (Tokens{1, 2, 3, 4, 5, 7, 0, 0}));
  EXPECT_EQ(rows.targets, (Tokens{2, 3, 4, 5, 6, 8, -1, -1}));
  EXPECT_EQ(rows.positions, (Tokens{0, 1, 2, 3, 0, 0, 0, 1}));
  EXPECT_EQ(rows.segments, (std::vector<Tokens>{{0}, {0, 1, 2}}));
  EXPECT_EQ(rows.valid_targets, 6);
}

TEST(SequentialBatches, HoldsOutAtMostTheRowsAskedFor) {
  SequentialBatches source(std::make_unique<ListedDocuments>(Documents{{1, 2, 3, 4, 5, 6, 7}}),
                           {.row_length = 2, .endless = false, .most_rows = 2});
  Rows rows;
  ASSERT_TRUE(source.next(8, rows));
  EXPECT_EQ(rows.targets, (Tokens{2, 3, 4, 5}));
  EXPECT_FALSE(source.next(8, rows));
}

TEST(SequentialBatches, TrainingNeverEndsNotEvenInAStoreShorterThanARow) {
  SequentialBatches source = batches({{1, 2, 3}}, 7, true);
  Rows rows;
  ASSERT_TRUE(source.next(2, rows));
  EXPECT_EQ(rows.tokens, (Tokens{1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(rows.segments, (std::vector<Tokens>{{0, 2, 4, 6}, {0, 1, 3, 5}}));
  EXPECT_EQ(rows.valid_targets, 14);
}

// Rows of one mesh put together again in global order: (tokens, targets, positions, segments) a row.
using Row = std::tuple<Tokens, Tokens, Tokens, Tokens>;

std::vector<Row> global_rows(const Documents& documents, std::int64_t row_length, bool endless, int ranks,
                             std::int64_t rows_per_step, int steps) {
  std::vector<SequentialBatches> sources;
  for (int rank = 0; rank < ranks; ++rank) sources.push_back(batches(documents, row_length, endless, rank, ranks));
  std::vector<Row> result;
  for (int step = 0; step < steps; ++step) {
    std::map<std::int64_t, Row> step_rows;
    int ended = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      SequentialBatches& source = sources[static_cast<std::size_t>(rank)];
      Rows rows;
      ended += !source.next(rows_per_step, rows);
      EXPECT_EQ(source.position(), sources[0].position());
      for (std::int64_t r = 0; r < rows.rows; ++r) {
        const auto cut = [&](const Tokens& all) {
          const auto begin = all.begin() + r * row_length;
          return Tokens(begin, begin + row_length);
        };
        step_rows[r * ranks + rank] = {cut(rows.tokens), cut(rows.targets), cut(rows.positions),
                                       rows.segments[static_cast<std::size_t>(r)]};
      }
      const auto valid =
          std::count_if(rows.targets.begin(), rows.targets.end(), [](auto target) { return target >= 0; });
      EXPECT_EQ(rows.valid_targets, valid);
    }
    EXPECT_TRUE(ended == 0 || ended == ranks);  // all ranks agree on the end
    std::int64_t expected = 0;
    for (auto& [number, row] : step_rows) {
      EXPECT_EQ(number, expected++);
      result.push_back(std::move(row));
    }
  }
  return result;
}

// Reads a row back by the contract alone: within a segment positions count up from 0 and each target is the next input.
void check_row(const Row& row) {
  const auto& [tokens, targets, positions, segments] = row;
  ASSERT_FALSE(segments.empty());
  ASSERT_EQ(segments[0], 0);
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const std::int32_t end = s + 1 < segments.size() ? segments[s + 1] : static_cast<std::int32_t>(tokens.size());
    ASSERT_LT(segments[s], end);
    for (std::int32_t i = segments[s]; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(positions[at], i - segments[s]);
      if (i + 1 < end && targets[at] >= 0) {
        ASSERT_EQ(targets[at], tokens[at + 1]);
      }
      if (targets[at] < 0) {
        ASSERT_EQ(tokens[at], 0);
      }
    }
  }
}

TEST(SequentialBatches, DealsEveryTargetExactlyOnceOnEveryMesh) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Documents documents = random_documents(seed);
    std::vector<Tokens::value_type> expected;
    for (const auto& document : documents) {
      for (std::size_t i = 1; i < document.size(); ++i) expected.push_back(document[i]);
    }
    const std::int64_t row_length = 1 + static_cast<std::int64_t>(seed % 9);
    const auto rows = global_rows(documents, row_length, false, 1, 3, 200);
    for (const int ranks : {2, 3, 5}) EXPECT_EQ(global_rows(documents, row_length, false, ranks, 3, 200), rows);
    std::vector<Tokens::value_type> dealt;
    for (const Row& row : rows) {
      check_row(row);
      for (const std::int32_t target : std::get<1>(row)) {
        if (target >= 0) dealt.push_back(target);
      }
    }
    EXPECT_EQ(dealt, expected) << "seed " << seed;  // in the store's order, too
  }
}

TEST(SequentialBatches, EveryEpochDealsEveryTargetOnceInAnOrderOfItsOwn) {
  const Documents documents = random_documents(3);
  SequentialBatches source = batches(documents, 5, true);
  const auto per_epoch = static_cast<std::size_t>(source.targets());
  Tokens dealt;
  for (const Row& row : global_rows(documents, 5, true, 1, 4, static_cast<int>(per_epoch * 3 / 20 + 1))) {
    check_row(row);
    dealt.insert(dealt.end(), std::get<1>(row).begin(), std::get<1>(row).end());
  }
  ASSERT_GE(dealt.size(), per_epoch * 3);
  std::vector<Tokens> epochs;
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    const auto begin = dealt.begin() + static_cast<std::ptrdiff_t>(epoch * per_epoch);
    epochs.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(per_epoch));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (Tokens& epoch : epochs) std::sort(epoch.begin(), epoch.end());
  EXPECT_EQ(epochs[0], epochs[1]);
  EXPECT_EQ(epochs[1], epochs[2]);
  EXPECT_EQ(std::adjacent_find(epochs[0].begin(), epochs[0].end()), epochs[0].end());
}

TEST(SequentialBatches, TheMeshDoesNotChangeAStepsRows) {
  const Documents documents = random_documents(11);
  const auto rows = global_rows(documents, 6, true, 1, 6, 20);
  for (const int ranks : {2, 3, 4, 6, 8}) EXPECT_EQ(global_rows(documents, 6, true, ranks, 6, 20), rows) << ranks;
}

TEST(SequentialBatches, ResumesLikeTheStraightRunTheSecondTimeToo) {
  const Documents documents = random_documents(5);
  for (int stop = 0; stop < 25; ++stop) {
    SequentialBatches straight = batches(documents, 4, true);
    SequentialBatches first = batches(documents, 4, true);
    SequentialBatches second = batches(documents, 4, true);
    SequentialBatches third = batches(documents, 4, true);
    Rows expected, rows;
    for (int step = 0; step < stop; ++step) straight.next(2, expected), first.next(2, rows);
    second.restore(first.position());
    for (int step = 0; step < 3; ++step) straight.next(2, expected), second.next(2, rows);
    third.restore(second.position());
    for (int step = 0; step < 5; ++step) {
      straight.next(2, expected), third.next(2, rows);
      EXPECT_EQ(rows.tokens, expected.tokens);
      EXPECT_EQ(rows.targets, expected.targets);
      EXPECT_EQ(rows.segments, expected.segments);
    }
    EXPECT_EQ(third.position(), straight.position());
  }
}

TEST(SequentialBatches, ASourceAtItsEndStaysThereAndCanBeRewound) {
  SequentialBatches source = batches({{1, 2, 3}}, 4, false);
  const std::string start = source.position();
  Rows rows;
  ASSERT_TRUE(source.next(1, rows));
  ASSERT_FALSE(source.next(1, rows));
  const std::string end = source.position();
  source.restore(start);
  ASSERT_TRUE(source.next(1, rows));
  EXPECT_EQ(rows.tokens, (Tokens{1, 2, 0, 0}));
  source.restore(end);
  EXPECT_FALSE(source.next(1, rows));
}

Job generated_job() {
  Job job;
  job.mutable_model()->set_vocab_size(50);
  job.mutable_training()->set_sequence_length(16);
  job.mutable_data()->mutable_generated()->set_documents(20);
  return job;
}

TEST(GeneratedDocuments, RefusesImpossibleChains) {
  Job job = generated_job();
  const auto refused = [](const Job& bad) { return refusal(ErrorKind::config, [&] { training_batches(bad, 0, 1); }); };
  Job wide = job;
  wide.mutable_data()->mutable_generated()->set_branches(51);
  EXPECT_NAMES(refused(wide), "vocab_size 50");
  Job upside_down = job;
  upside_down.mutable_data()->mutable_generated()->set_longest(8);
  EXPECT_NAMES(refused(upside_down), "16 to 8");
  Job both = job;
  both.mutable_data()->set_tokens("x.h5");
  EXPECT_NAMES(refused(both), "both");
  Job neither = job;
  neither.clear_data();
  EXPECT_NAMES(refused(neither), "neither");
  neither.mutable_data()->set_tokens("x.h5");
  HeldOut& set = *neither.mutable_evaluation()->add_held_out();
  set.set_name("other");
  const auto refused_set = [&] { return refusal(ErrorKind::config, [&] { held_out_batches(neither, 0, 1); }); };
  EXPECT_NAMES(refused_set(), "held-out set 'other': names neither");
  set.set_generated_documents(3);
  EXPECT_NAMES(refused_set(), "held-out set 'other': generated_documents is 3");
  set.set_tokens("x.h5");
  EXPECT_NAMES(refused_set(), "held-out set 'other': names both");
  EXPECT_TRUE(held_out_batches(job, 0, 1).empty());
}

TEST(GeneratedDocuments, ArePureFunctionsOfTheSeedAndWalkTheChain) {
  GeneratedTokens config;
  const GeneratedDocuments train(config, 30, 50, 1, "train");
  const GeneratedDocuments again(config, 30, 50, 1, "train");
  const GeneratedDocuments held_out(config, 30, 50, 1, "held-out/a");
  const GeneratedDocuments other(config, 30, 50, 2, "train");
  bool lengths_differ = false;
  for (std::uint64_t d = 0; d < 30; ++d) {
    const std::uint64_t length = train.length(d);
    EXPECT_GE(length, config.shortest());
    EXPECT_LE(length, config.longest());
    lengths_differ = lengths_differ || length != train.length(0);
    Tokens whole(length), part(length - 5);
    train.read(d, 0, whole);
    again.read(d, 5, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 5));
    for (std::size_t i = 1; i < whole.size(); ++i) {
      int ways = 0;
      for (std::uint64_t branch = 0; branch < config.branches(); ++branch) {
        ways += held_out.successor(whole[i - 1], branch) == whole[i];  // both splits share the chain
      }
      ASSERT_EQ(ways, 1);
    }
    Tokens elsewhere(16);
    other.read(d, 0, elsewhere);
    EXPECT_FALSE(std::equal(elsewhere.begin(), elsewhere.end(), whole.begin()));
    held_out.read(d, 0, elsewhere);
    EXPECT_FALSE(std::equal(elsewhere.begin(), elsewhere.end(), whole.begin()));
  }
  EXPECT_TRUE(lengths_differ);
  EXPECT_NE(train.identity(), held_out.identity());
  EXPECT_NE(train.identity(), other.identity());
}

TEST(GeneratedDocuments, FeedTheBatchesOfAJob) {
  Job job = generated_job();
  for (const char* name : {"short", "whole"}) {
    HeldOut* set = job.mutable_evaluation()->add_held_out();
    set->set_name(name);
    set->set_generated_documents(3);
  }
  job.mutable_evaluation()->mutable_held_out(0)->set_rows(2);
  const auto train = training_batches(job, 1, 2);
  Rows rows;
  ASSERT_TRUE(train->next(8, rows));
  EXPECT_EQ(rows.rows, 4);
  EXPECT_EQ(rows.valid_targets, 64);
  const auto sets = held_out_batches(job, 0, 1);
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name, "short");
  EXPECT_NE(sets[0].batches->source().identity(), sets[1].batches->source().identity());
  ASSERT_TRUE(sets[0].batches->next(8, rows));
  EXPECT_EQ(rows.rows, 2);
  EXPECT_FALSE(sets[0].batches->next(8, rows));
  std::int64_t targets = 0;
  while (sets[1].batches->next(2, rows)) targets += rows.valid_targets;
  EXPECT_EQ(static_cast<std::uint64_t>(targets), sets[1].batches->targets());
}

}  // namespace
}  // namespace ananke
