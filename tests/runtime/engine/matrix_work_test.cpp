#include "runtime/engine/matrix_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tests/refusal.h"
#include "tests/runtime/comm/small_model.h"

namespace ananke {
namespace {

// Whole matrices for all but norms, heads of `head_rows` rows for projections; costs are elements.
class Whole final : public Optimizer {
 public:
  explicit Whole(std::int64_t head_rows = 0) : head_rows_(head_rows) {}
  OptimizerLayout layout(const Parameter& parameter) const override {
    if (parameter.name == "lm_head.weight") fail(ErrorKind::config, "not for {}", parameter.name);
    return parameter.shape.rank() == 2 ? OptimizerLayout::whole_matrix : OptimizerLayout::any_fragment;
  }
  double cost(const Parameter& parameter) const override { return static_cast<double>(parameter.shape.elements()); }
  std::vector<StateTensor> states(const Parameter&) const override { return {}; }
  double learning_rate() const override { return 1; }
  std::int64_t matrix_rows(const Parameter& parameter) const override {
    const bool head = head_rows_ > 0 && parameter.name.find("q_proj") != std::string::npos;
    return head ? head_rows_ : parameter.shape[0];
  }

 private:
  std::int64_t head_rows_;
};

struct World {
  explicit World(const testing::SmallModel& model, std::int64_t head_rows = 0) : table(testing::make_model(model)) {
    optimizers.emplace("whole", std::make_unique<Whole>(head_rows));
    for (const Parameter& parameter : table.parameters()) {
      chosen.push_back(parameter.kind == ParameterKind::head ? "other" : "whole");
    }
    optimizers.emplace("other", std::make_unique<Other>());
  }
  class Other final : public Optimizer {
   public:
    OptimizerLayout layout(const Parameter&) const override { return OptimizerLayout::any_fragment; }
    double cost(const Parameter&) const override { return 0; }
    std::vector<StateTensor> states(const Parameter&) const override { return {}; }
    double learning_rate() const override { return 1; }
  };
  std::vector<std::vector<Fragment>> placed(int shard) const {
    const Placement placement(table, {1, shard});
    std::vector<std::vector<Fragment>> all;
    for (int rank = 0; rank < shard; ++rank) all.push_back(placement.fragments(rank));
    return all;
  }
  MatrixWork work(const std::vector<std::vector<Fragment>>& fragments, const MatrixWorkOptions& options) const {
    return {table, chosen, optimizers, fragments, options};
  }
  const Parameter& parameter(const MatrixWork::Assignment& matrix) const {
    return table.parameters()[static_cast<std::size_t>(matrix.parameter)];
  }
  ParameterTable table;
  OptimizerMap optimizers;
  std::vector<std::string> chosen;
};

TEST(MatrixWork, PassesOnWhatAnOptimizerRefuses) {
  World world({});
  world.chosen.assign(world.chosen.size(), "whole");
  EXPECT_ERROR(world.work(world.placed(2), {}), ErrorKind::config, "not for lm_head.weight");
}

TEST(MatrixWork, OfOneRankIsAllResident) {
  const World world({});
  const MatrixWork work = world.work(world.placed(1), {});
  EXPECT_TRUE(work.travelling().empty());
  EXPECT_EQ(work.assignments().size(), 1u + 2 * (4 + 1 + 3 * 5));
  std::int64_t elements = 0, matrices = 0;
  for (const MatrixRound& round : work.resident()) {
    for (const MatrixPart& part : round.parts) elements += part.count;
    for (const MatrixGroup& group : round.groups) matrices += group.count;
    EXPECT_TRUE(round.broadcast.empty());
  }
  EXPECT_EQ(matrices, static_cast<std::int64_t>(work.assignments().size()));
  const std::int64_t norms = 2 * (2 * 8 + 2 * 4) + 8;
  EXPECT_EQ(elements, world.table.total() - norms - 21 * 8);
}

TEST(MatrixWork, KeepsWholeExpertsWhereTheyAreAndSendsTheRest) {
  const World world({});
  const MatrixWork work = world.work(world.placed(4), {.rank = 1});
  for (const MatrixWork::Assignment& matrix : work.assignments()) {
    const Parameter& parameter = world.parameter(matrix);
    if (parameter.kind != ParameterKind::expert) continue;
    EXPECT_FALSE(matrix.travels) << parameter.name;
    EXPECT_EQ(matrix.rank, parameter.expert / 2) << parameter.name;  // 5 experts over 4 ranks, two each at most
  }
  EXPECT_FALSE(work.travelling().empty());
}

TEST(MatrixWork, CutsAParameterIntoItsHeads) {
  const World world({}, 4);
  const MatrixWork work = world.work(world.placed(2), {});
  int heads = 0;
  for (const MatrixWork::Assignment& matrix : work.assignments()) {
    if (world.parameter(matrix).name.find("q_proj") == std::string::npos) continue;
    EXPECT_EQ(matrix.rows, 4);
    EXPECT_EQ(matrix.begin % (4 * 8), 0);
    EXPECT_EQ(matrix.cost, 4 * 8);
    ++heads;
  }
  EXPECT_EQ(heads, 2 * 2);
}

// Every parameter in halves on two ranks, but the experts whole on the first.
std::vector<std::vector<Fragment>> halves(const World& world) {
  std::vector<std::vector<Fragment>> fragments(2);
  for (int p = 0; p < static_cast<int>(world.table.parameters().size()); ++p) {
    const Parameter& parameter = world.table.parameters()[static_cast<std::size_t>(p)];
    const std::int64_t size = parameter.shape.elements();
    const std::int64_t first = parameter.kind == ParameterKind::expert ? size : size / 2;
    fragments[0].push_back({p, parameter.unit, 0, first, 0});
    if (first < size) fragments[1].push_back({p, parameter.unit, first, size - first, 0});
  }
  return fragments;
}

std::vector<double> loads_of(const MatrixWork& work) {
  std::vector<double> loads(2);
  for (const MatrixWork::Assignment& matrix : work.assignments()) {
    loads[static_cast<std::size_t>(matrix.rank)] += matrix.cost;
  }
  return loads;
}

TEST(MatrixWork, GivesTheNextMatrixToTheRankOfLeastLoad) {
  const World world({.layers = 1, .experts = 4});
  // Experts weigh 4 x 3 x 48 = 576, the others 168 + 64 + 32 + 32 + 64 + 32 = 392: all go to the rank without experts.
  EXPECT_EQ(loads_of(world.work(halves(world), {})), (std::vector<double>{576, 392}));
}

TEST(MatrixWork, BalancesLoadsOverTheRounds) {
  const World world({.layers = 9, .experts = 0});
  const MatrixWork work = world.work(halves(world), {.bucket_bytes = 256});
  EXPECT_GT(work.travelling().size(), 3u);
  const std::vector<double> loads = loads_of(work);
  EXPECT_LE(std::abs(loads[0] - loads[1]), 64) << loads[0] << " and " << loads[1];
}

TEST(MatrixWork, BoundsARoundByTheBucketOrItsLargestMatrix) {
  const World world({.layers = 6, .experts = 3});
  constexpr std::int64_t largest = 21 * 8;  // of those that travel
  for (const std::uint64_t bucket : {0, 100, 4096}) {
    for (int rank = 0; rank < 3; ++rank) {
      const MatrixWork work =
          world.work(world.placed(3), {.rank = rank, .bucket_bytes = bucket, .resident_bytes = bucket});
      for (const MatrixRound& round : work.travelling()) {
        EXPECT_LE(round.exchange.received_elements(),
                  std::max<std::int64_t>(largest, static_cast<std::int64_t>(bucket / 4)));
      }
      for (const MatrixRound& round : work.resident()) {
        const auto elements =
            std::accumulate(round.parts.begin(), round.parts.end(), std::int64_t{0},
                            [](std::int64_t sum, const MatrixPart& part) { return sum + part.count; });
        EXPECT_TRUE(round.parts.size() == 1 || elements <= static_cast<std::int64_t>(bucket / 4));
      }
    }
  }
}

TEST(MatrixWork, LetsReplicasShareEveryRoundAndAgreeOnIt) {
  const World world({.layers = 3});
  const auto fragments = world.placed(2);
  std::set<std::string> hashes;
  std::vector<double> loads(4);
  for (int replica = 0; replica < 2; ++replica) {
    for (int rank = 0; rank < 2; ++rank) {
      const MatrixWork work =
          world.work(fragments, {.replicas = 2, .replica = replica, .rank = rank, .share_replicas = true});
      hashes.insert(work.hash());
      for (const MatrixRound& round : work.travelling()) {
        ASSERT_EQ(round.broadcast.size(), 2u);
        EXPECT_EQ(round.broadcast[1].begin, round.broadcast[0].count);
        EXPECT_EQ(round.broadcast[0].count + round.broadcast[1].count, round.transfer);
        EXPECT_EQ(round.sent.begin, round.broadcast[static_cast<std::size_t>(replica)].begin);
      }
      if (replica == 0 && rank == 0) {
        for (const MatrixWork::Assignment& m : work.assignments()) {
          loads[static_cast<std::size_t>(m.replica * 2 + m.rank)] += m.cost;
        }
      }
    }
  }
  EXPECT_EQ(hashes.size(), 1u);
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  for (const double load : loads) EXPECT_GT(load, 0.2 * sum);
}

// Experts are the matrices of one shape that need a device to themselves the least.
TEST(MatrixWork, TransformsResidentMatricesOfOneShapeTogetherInAtLeastFourRounds) {
  const World world({.layers = 2, .experts = 16});
  const MatrixWork work = world.work(halves(world), {});
  ASSERT_GE(work.resident().size(), 4u);
  EXPECT_LE(work.resident().size(), 6u);
  std::int64_t most = 0;
  for (const MatrixRound& round : work.resident()) {
    for (const MatrixGroup& group : round.groups) most = std::max(most, group.count);
  }
  EXPECT_GE(most, 16);
}

TEST(MatrixWork, HashFollowsMeshAndBucket) {
  const World world({});
  const std::string hash = world.work(world.placed(2), {}).hash();
  EXPECT_EQ(world.work(world.placed(2), {.rank = 1}).hash(), hash);
  EXPECT_NE(world.work(world.placed(3), {}).hash(), hash);
  EXPECT_NE(world.work(halves(world), {.bucket_bytes = 64}).hash(), world.work(halves(world), {}).hash());
  EXPECT_NE(world.work(world.placed(2), {.resident_bytes = 64}).hash(), hash);
}

// More ranks than matrices, ranks that own nothing, cuts anywhere: each element of each matrix is prepared once.
TEST(MatrixWork, OfRandomCutsCoversEveryElementOnce) {
  const World world({.layers = 1, .experts = 2}, 4);
  std::mt19937 engine(5);
  for (int run = 0; run < 60; ++run) {
    const int ranks = 1 + static_cast<int>(engine() % 40);
    std::vector<std::vector<Fragment>> fragments(static_cast<std::size_t>(ranks));
    for (int p = 0; p < static_cast<int>(world.table.parameters().size()); ++p) {
      const Parameter& parameter = world.table.parameters()[static_cast<std::size_t>(p)];
      for (std::int64_t begin = 0; begin < parameter.shape.elements();) {
        const auto left = static_cast<unsigned>(parameter.shape.elements() - begin);
        const std::int64_t count = engine() % 3 == 0 ? left : 1 + engine() % left;
        fragments[engine() % static_cast<unsigned>(ranks)].push_back({p, parameter.unit, begin, count, 0});
        begin += count;
      }
    }
    std::map<int, std::vector<int>> prepared;
    const std::uint64_t bucket = engine() % 2 ? 256 : 1 << 20;
    for (int rank = 0; rank < ranks; ++rank) {
      const MatrixWork work = world.work(fragments, {.rank = rank, .bucket_bytes = bucket, .resident_bytes = bucket});
      for (const auto* rounds : {&work.resident(), &work.travelling()}) {
        for (const MatrixRound& round : *rounds) {
          for (const MatrixPart& part : round.parts) {
            const Fragment& fragment = fragments[static_cast<std::size_t>(rank)][part.fragment];
            auto& counts = prepared[fragment.parameter];
            counts.resize(static_cast<std::size_t>(
                world.table.parameters()[static_cast<std::size_t>(fragment.parameter)].shape.elements()));
            ASSERT_LE(part.begin + part.count, fragment.count);
            for (std::int64_t i = 0; i < part.count; ++i) {
              ++counts[static_cast<std::size_t>(fragment.begin + part.begin + i)];
            }
          }
        }
      }
    }
    EXPECT_EQ(prepared.size(), 1u + 4 + 1 + 6);
    for (const auto& [parameter, counts] : prepared) {
      EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; })) << parameter;
    }
  }
}

}  // namespace
}  // namespace ananke
