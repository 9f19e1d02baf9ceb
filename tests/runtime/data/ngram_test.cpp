#include "runtime/data/ngram.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/refusal.h"
#include "tests/runtime/data/listed_documents.h"

namespace ananke {
namespace {

TEST(Ngram, ScoresByAddOneAndWittenBell) {
  // Training: a b, a b, a c over {a, b, c, d}: 2 a.b, 1 a.c; singles 3 a, 2 b, 1 c.
  const ListedDocuments train({{0, 1}, {0, 1}, {0, 2}});
  const ListedDocuments held_out({{0, 1}, {0, 3}, {1, 0}, {3}});
  const NgramEntropies found = ngram_entropies(train, held_out, 4);
  const double a = 4.0 / 10, b = 3.0 / 10, d = 1.0 / 10;
  EXPECT_EQ(found.train_tokens, 6U);
  EXPECT_EQ(found.targets, 3U);
  EXPECT_NEAR(found.unigram, -(std::log(b) + std::log(d) + std::log(a)) / 3, 1e-12);
  EXPECT_NEAR(found.bigram, -(std::log((2 + 2 * b) / 5) + std::log(2 * d / 5) + std::log(a)) / 3, 1e-12);
  const ListedDocuments lonely(Documents{{1}});
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { ngram_entropies(train, lonely, 4); }), "to score");
}

}  // namespace
}  // namespace ananke
