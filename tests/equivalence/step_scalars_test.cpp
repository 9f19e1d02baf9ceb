// What ranks agree on in a step: the loss is a mean over all valid targets, not a mean of the ranks' means.
#include "runtime/engine/step_scalars.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "tests/equivalence/rank_runs.h"

namespace ananke {
namespace {

struct Contribution {
  std::int64_t valid_targets;
  double loss_sum, square_sum;
  bool stop;
};

struct Agreed {
  StepScalars::Outcome outcome;
  float loss_scale = 0, clip_scale = 0;
  std::int32_t finite = -1;
};

// Each rank contributes its own; all must come to the same.
Agreed agree(const std::vector<Contribution>& ranks, double clip_norm) {
  std::mutex mutex;
  std::vector<Agreed> results;
  run_backends(static_cast<int>(ranks.size()), [&](int rank, Backend& backend, Communicator& world) {
    const Contribution& mine = ranks[static_cast<std::size_t>(rank)];
    Device& device = backend.device();
    StepScalars scalars(backend, world);
    scalars.begin(mine.valid_targets, mine.stop);
    Buffer staging = device.host_memory().allocate(2 * sizeof(double), "test");
    auto* values = staging.view(DType::f64, {2}).as<double>();
    values[0] = mine.loss_sum;
    values[1] = mine.square_sum;
    Stream& compute = device.stream(Resource::compute);
    device.copy(compute, scalars.loss().data, &values[0], sizeof(double));
    device.copy(compute, scalars.square_sum().data, &values[1], sizeof(double));
    scalars.agree(clip_norm);
    Agreed agreed;
    agreed.outcome = scalars.read();
    device.read(scalars.loss_scale(), &agreed.loss_scale);
    device.read(scalars.clip_scale(), &agreed.clip_scale);
    device.read(scalars.finite(), &agreed.finite);
    std::lock_guard lock(mutex);
    results.push_back(agreed);
  });
  for (const Agreed& other : results) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(other.outcome.loss_sum),
              std::bit_cast<std::uint64_t>(results[0].outcome.loss_sum));
    EXPECT_EQ(other.outcome.stop, results[0].outcome.stop);
    EXPECT_EQ(other.clip_scale, results[0].clip_scale);
  }
  return results[0];
}

// R3: three targets of loss 1 on one rank and one of loss 5 on the other make 2, not 3; every target weighs 1/4.
TEST(StepScalars, WeighEveryTargetAlike) {
  const Agreed agreed = agree({{3, 3.0, 0, false}, {1, 5.0, 0, false}}, 0);
  EXPECT_DOUBLE_EQ(agreed.outcome.loss(), 2.0);
  EXPECT_EQ(agreed.loss_scale, 0.25F);
  EXPECT_EQ(agreed.outcome.valid_targets, 4);
}

TEST(StepScalars, ARankWithoutTargetsChangesNothing) {
  const Agreed agreed = agree({{4, 6.0, 0, false}, {0, 0.0, 0, false}}, 0);
  EXPECT_DOUBLE_EQ(agreed.outcome.loss(), 1.5);
  EXPECT_EQ(agree({{0, 0, 0, false}}, 0).loss_scale, 0.0F);
}

TEST(StepScalars, ClipByTheNormOverAllShards) {
  const Agreed agreed = agree({{1, 1, 9.0, false}, {1, 1, 16.0, false}}, 1.0);
  EXPECT_DOUBLE_EQ(agreed.outcome.gradient_norm, 5.0);
  EXPECT_FLOAT_EQ(agreed.clip_scale, 1.0F / (5.0F + 1e-6F));
  EXPECT_EQ(agree({{1, 1, 9.0, false}, {1, 1, 16.0, false}}, 6.0).clip_scale, 1.0F);
  EXPECT_EQ(agree({{1, 1, 9.0, false}, {1, 1, 16.0, false}}, 0).clip_scale, 1.0F);
}

TEST(StepScalars, OneRanksStopOrInfinityIsEverybodys) {
  EXPECT_TRUE(agree({{1, 1, 1, false}, {1, 1, 1, true}}, 1).outcome.stop);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Contribution& bad : {Contribution{1, infinity, 1, false}, Contribution{1, std::nan(""), 1, false},
                                  Contribution{1, 1, infinity, false}, Contribution{1, 1, std::nan(""), false}}) {
    const Agreed agreed = agree({{1, 1, 1, false}, bad}, 1);
    EXPECT_FALSE(agreed.outcome.finite);
    EXPECT_EQ(agreed.finite, 0);
  }
}

}  // namespace
}  // namespace ananke
