#include "runtime/engine/rows_ahead.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

// Counts up; the rows of step `fails_at` cannot be made.
class Counting final : public Batches {
 public:
  bool next(std::int64_t count, Rows& out) override {
    if (++step == fails_at) fail(ErrorKind::data, "no rows for step {}", step);
    out.rows = count;
    out.valid_targets = step;
    return true;
  }
  std::string position() const override { return std::to_string(step); }
  void restore(const std::string& position) override { step = std::stoi(position); }
  int step = 0, fails_at = -1;
};

TEST(RowsAhead, AnErrorIsOfTheStepThatNeedsTheRows) {
  Counting batches;
  batches.fails_at = 2;
  RowsAhead rows(batches, 4);
  EXPECT_EQ(rows.take().valid_targets, 1);
  rows.prepare();
  EXPECT_EQ(rows.position(), "1");
  EXPECT_ERROR(rows.take(), ErrorKind::data, "no rows for step 2");
}

TEST(RowsAhead, StandsWhereTheTakenRowsEnd) {
  Counting batches;
  RowsAhead rows(batches, 4);
  EXPECT_EQ(rows.position(), "0");
  EXPECT_EQ(rows.take().rows, 4);
  EXPECT_EQ(rows.position(), "1");
  rows.prepare();
  rows.prepare();  // once is enough
  EXPECT_EQ(batches.step, 2);
  EXPECT_EQ(rows.position(), "1");
  EXPECT_EQ(rows.take().valid_targets, 2);
  EXPECT_EQ(rows.position(), "2");
}

TEST(RowsAhead, ForgetsWhatItHasWhenRestored) {
  Counting batches;
  batches.fails_at = 2;
  RowsAhead rows(batches, 4);
  rows.take();
  rows.prepare();  // fails
  rows.restore("7");
  EXPECT_EQ(rows.position(), "7");
  EXPECT_EQ(rows.take().valid_targets, 8);
}

}  // namespace
}  // namespace ananke
