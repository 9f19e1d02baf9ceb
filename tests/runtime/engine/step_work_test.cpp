#include "runtime/engine/step_work.h"

#include <gtest/gtest.h>

#include "ananke/telemetry.pb.h"
#include "runtime/model/parameter_table.h"
#include "tests/refusal.h"
#include "tests/runtime/comm/small_model.h"

namespace ananke {
namespace {

Rows rows_of(std::vector<std::vector<std::int32_t>> segments) {
  Rows rows;
  rows.rows = static_cast<std::int64_t>(segments.size());
  rows.row_length = 8;
  rows.segments = std::move(segments);
  return rows;
}

class StepWorkTest : public ::testing::Test {
 protected:
  // The sum over ranks, as the step's first all-reduce makes it.
  std::vector<double> share(std::vector<StepWork>& ranks, const std::vector<Rows>& rows,
                            const std::vector<std::optional<double>>& busy) {
    std::vector<double> sum(static_cast<std::size_t>(StepWork::slots(static_cast<int>(ranks.size()))), 0.0);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const std::span<const double> mine = ranks[r].begin(rows[r], busy[r]);
      EXPECT_EQ(mine.size(), sum.size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += mine[i];
    }
    return sum;
  }
  const ParameterTable table_{testing::make_model({.layers = 2, .experts = 3})};
};

TEST_F(StepWorkTest, RefusesTheValuesOfAnotherNumberOfRanks) {
  StepWork work(table_, 0, 2);
  StepRecord record;
  EXPECT_ERROR(work.report(std::vector<double>(3), record), ErrorKind::internal, "3 values for 2 ranks");
}

TEST_F(StepWorkTest, CountsAttentionBySquaresAndTheRestByPositions) {
  const StepWork work(table_, 0, 1);
  const double token = table_.flops_per_token(0), square = table_.flops_per_token(1) - token;
  const StepWork::Flops flops = work.flops(rows_of({{0}, {0, 3, 7}}));
  EXPECT_DOUBLE_EQ(flops.rest, 16 * token);
  EXPECT_DOUBLE_EQ(flops.attention, (64 + 9 + 16 + 1) * square);
  EXPECT_EQ(work.flops({}).rest, 0.0);
}

TEST_F(StepWorkTest, NamesTheRankWithMostToDoAndTheSlowestOfTheStepBefore) {
  std::vector<StepWork> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(table_, rank, 3);
  const std::vector<Rows> first = {rows_of({{0, 4}}), rows_of({{0, 4}}), rows_of({{0}})};
  const std::vector<Rows> second = {rows_of({{0}}), rows_of({{0}}), rows_of({{0}})};
  const double token = table_.flops_per_token(0), square = table_.flops_per_token(1) - token;
  const double few = 8 * token + 32 * square, many = 8 * token + 64 * square, mean = (2 * few + many) / 3;

  StepRecord record;
  record.set_seconds(8);
  ranks[0].report(share(ranks, first, {1.0, 10.0, 100.0}), record);
  EXPECT_NEAR(record.work().largest(), many / mean, 1e-12);
  EXPECT_EQ(record.work().largest_rank(), 2u);
  EXPECT_NEAR(record.work().attention(), 128 * square / (24 * token + 128 * square), 1e-12);
  EXPECT_FALSE(record.work().has_slowest());
  EXPECT_FALSE(record.work().has_straggler());
  ranks[0].end(2.0);
  ranks[1].end(14.0);
  ranks[2].end(101.0);

  record.Clear();
  ranks[0].report(share(ranks, second, {2.0, 14.0, 101.0}), record);
  EXPECT_NEAR(record.work().largest(), 1.0, 1e-12);
  EXPECT_NEAR(record.work().slowest(), 2.0, 1e-12) << "1, 4 and 1 s";
  EXPECT_EQ(record.work().slowest_rank(), 1u);
  EXPECT_NEAR(record.work().slowest_work(), few / mean, 1e-12);
  EXPECT_NEAR(record.work().straggler(), 4.0, 1e-12) << "against the first rank, which has as much to do";
  EXPECT_EQ(record.work().straggler_rank(), 1u);
  EXPECT_NEAR(record.work().waiting(), 1 - 2.0 / 8, 1e-12) << "2 of 8 s in the mean";
}

// It takes as long as the mean, since it has the least to do: no comparison of times alone would find it.
TEST_F(StepWorkTest, FindsASlowNodeBehindUnevenRows) {
  std::vector<StepWork> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(table_, rank, 3);
  const std::vector<Rows> rows = {rows_of({{0}, {0}, {0}, {0}}), rows_of({{0}, {0}, {0}, {0}}), rows_of({{0}, {0}})};
  StepRecord record;
  for (int step = 0; step < 2; ++step) {
    record.Clear();
    ranks[0].report(share(ranks, rows, {0.0, 0.0, 0.0}), record);
    ranks[0].end(4.1);
    ranks[1].end(4.0);
    ranks[2].end(4.0);
  }
  EXPECT_EQ(record.work().slowest_rank(), 0u);
  EXPECT_EQ(record.work().straggler_rank(), 2u);
  EXPECT_NEAR(record.work().straggler(), 8.0 / 4.1, 1e-9);
}

TEST_F(StepWorkTest, SaysNothingOfTimesThatSomeRankDoesNotMeasure) {
  std::vector<StepWork> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.emplace_back(table_, rank, 2);
  const std::vector<Rows> rows = {rows_of({{0}}), rows_of({{0}})};
  StepRecord record;
  for (int step = 0; step < 2; ++step) {
    record.Clear();
    ranks[0].report(share(ranks, rows, {1.0, std::nullopt}), record);
    ranks[0].end(2.0);
    ranks[1].end(std::nullopt);
  }
  EXPECT_FALSE(record.work().has_slowest());
  EXPECT_EQ(record.work().largest(), 1.0);
}

}  // namespace
}  // namespace ananke
