// Owners that store bf16 (training.weights): results of meshes, checkpoints, memory. On a backend that rounds as one
// with such operators would, or on GPUs.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/checkpoint/safetensors_writer.h"
#include "runtime/comm/placement.h"
#include "runtime/engine/stored_values.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"
#include "tests/test_gpus.h"

namespace ananke {
namespace {

const std::string computes = "training { compute: BF16 } ";
const std::string stores = computes + "training { weights: BF16 } ";

RunRequest on(const MeshShape& mesh, int microbatches = 1) {
  RunRequest request{mesh, microbatches};
  request.expert_chunks = mesh.expert > 1 ? 2 : 0;
  request.rounding = test_backend(mesh.ranks()) == std::string("backend_host");
  return request;
}

// A GPU has kernels that add in any order unless it is told.
std::string repeatable(const std::string& changes) {
  return changes + (on_gpus() ? "training { deterministic: true } " : "");
}

// As an owner stores them.
std::vector<float> rounded(std::vector<float> values) {
  std::vector<std::byte> stored(values.size() * size_of(DType::bf16));
  narrow(values, DType::bf16, stored.data());
  widen(stored.data(), DType::bf16, values);
  return values;
}

class StoredWeights : public testing::Test {
 protected:
  GradientResult gradients(const std::string& changes, const RunRequest& request, const std::string& config = "") {
    Job job = small_job(folder_.path(), repeatable(changes));
    if (!config.empty()) add_plugin(job, "fsdp", config);
    return first_gradients(std::move(job), request);
  }
  // Which parameters are stored as training.weights says.
  bool is_narrow(const std::string& name) const {
    for (const Parameter& parameter : table_.parameters()) {
      if (parameter.name == name) return segment_of(parameter.kind) == UnitSegment::wire;
    }
    ADD_FAILURE() << "no parameter " << name;
    return false;
  }
  // Rounded where they are stored so.
  std::vector<float> as_stored(const std::string& parameter, const std::vector<float>& values) const {
    return is_narrow(parameter) ? rounded(values) : values;
  }
  TemporaryFolder folder_;
  Job job_ = small_job("unused");
  ParameterTable table_{job_.model()};
};

TEST_F(StoredWeights, AreRefusedWhereSomeRoleStoresNone) {
  RunRequest request = on({1, 1});
  EXPECT_ERROR(gradients(stores + "optimizer { match: \"experts\" use: \"muon\" } ", request), ErrorKind::config,
               "training.weights is BF16, but optimizer 'muon' updates weights in no bf16");
  EXPECT_ERROR(gradients(stores, request, "gather_experts: FP8_E4M3"), ErrorKind::config,
               "fsdp: gather_experts is FP8_E4M3", "training.weights is BF16", "set gather_experts: BF16");
  if (!request.rounding) return;
  request.rounding = false;
  EXPECT_ERROR(gradients("training { weights: BF16 } ", request), ErrorKind::config,
               "training.weights is BF16, but backend 'backend_host' stores weights in no bf16");
}

// Weights are rounded once, at the owner or where they are computed with, and one reduction is rounded once: to the
// same bits as gradients that are stored in f32 and then rounded.
TEST_F(StoredWeights, GradientsOfOneReductionAreThoseInF32Rounded) {
  const std::string together = "training { microbatches_per_gather: 0 } ";
  for (const MeshShape& mesh : {MeshShape{1, 1}, {1, 2}, {1, 2, 2}, {1, 4, 2}}) {
    for (const char* wires : {"", "reduce_dense: BF16_ALL_TO_ALL reduce_experts: BF16_ALL_TO_ALL"}) {
      SCOPED_TRACE(to_string(mesh) + " " + wires);
      const GradientResult wide = gradients(computes + together, on(mesh, 2), wires);
      const GradientResult narrow = gradients(stores + together, on(mesh, 2), wires);
      EXPECT_EQ(narrow.loss, wide.loss);
      ASSERT_EQ(narrow.gradients.size(), wide.gradients.size());
      for (const auto& [name, gradient] : wide.gradients) {
        EXPECT_EQ(narrow.gradients.at(name), as_stored(name, gradient)) << name;
      }
    }
  }
}

// Every reduction and the replicas round once more, each by half of 2^-8 of the sum so far; replicas hold the same
// bits.
TEST_F(StoredWeights, GradientsOfSeveralReductionsAreThoseInF32UpToRounding) {
  for (const MeshShape& mesh : {MeshShape{1, 1}, {2, 1}, {2, 2}, {1, 2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const GradientResult wide = gradients(computes, on(mesh, 2)), narrow = gradients(stores, on(mesh, 2));
    for (const auto& [name, gradient] : wide.gradients) {
      const double difference = relative_difference(narrow.gradients.at(name), gradient);
      EXPECT_LE(difference, is_narrow(name) ? 3 * 0x1p-8 : 0) << name;
      EXPECT_EQ(narrow.gradients.at(name), as_stored(name, narrow.gradients.at(name))) << name;
    }
    for (const auto& [place, copies] : narrow.by_replica) {
      ASSERT_EQ(std::ssize(copies), mesh.replicate) << place;
      EXPECT_TRUE(std::ranges::all_of(copies, [&](const auto& copy) { return copy == copies[0]; })) << place;
    }
  }
}

// The bytes of what owners hold, of all ranks' parameters; what they hold in f32 is a few norms and the router.
TEST_F(StoredWeights, OwnersTakeHalfTheMemory) {
  std::uint64_t wide = 0, narrow = 0;
  for (const Parameter& parameter : table_.parameters()) {
    const auto elements = static_cast<std::uint64_t>((parameter.shape.elements() + 15) / 16 * 16);
    wide += elements * 4;
    narrow += elements * (segment_of(parameter.kind) == UnitSegment::wire ? 2 : 4);
  }
  const auto plan_wide = gradients(computes, on({1, 1})).planned, plan = gradients(stores, on({1, 1})).planned;
  for (const char* purpose : {"weights", "gradients"}) {
    EXPECT_EQ(plan_wide.at(purpose), wide) << purpose;
    EXPECT_EQ(plan.at(purpose), narrow) << purpose;
  }
  EXPECT_LT(narrow, wide * 6 / 10);
  // What is computed with needs no copy; gradients arrive in slots.
  EXPECT_EQ(plan.contains("gather slots"), false);
  EXPECT_GT(plan.at("gradient slots"), 0u);
  const auto cut = gradients(stores, on({1, 2})).planned;
  EXPECT_EQ(cut.contains("gather wire"), false) << "what is stored travels as it is";
}

// Whatever the mesh, within what a few steps of rounded sums and updates make of it; and near to f32 weights.
TEST_F(StoredWeights, LossesFollowThoseOfOneRankAndOfF32Weights) {
  const auto run = [&](const std::string& changes, const RunRequest& request) {
    const TemporaryFolder folder;
    return train(small_job(folder.path(), repeatable(changes)), request);
  };
  const auto expect_near = [](const RunResult& got, const RunResult& wanted, double tolerance) {
    ASSERT_EQ(got.steps.size(), wanted.steps.size());
    for (std::size_t i = 0; i < got.steps.size(); ++i) {
      EXPECT_NEAR(got.steps[i].loss(), wanted.steps[i].loss(), tolerance) << "step " << i + 1;
      EXPECT_NEAR(got.steps[i].gradient_norm(), wanted.steps[i].gradient_norm(), 0.1 * wanted.steps[i].gradient_norm());
    }
  };
  const RunResult one = run(stores, on({1, 1}));
  EXPECT_LT(one.steps.back().loss(), one.steps.front().loss());
  for (const auto& [name, values] : one.states) {
    EXPECT_EQ(values, as_stored(name.substr(0, name.find(' ')), values)) << name;
  }
  expect_near(one, run(computes, on({1, 1})), 0.02);
  for (const MeshShape& mesh : {MeshShape{1, 2}, {2, 1}, {1, 2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    expect_near(run(stores, on(mesh, 2)), one, 0.02);
  }
}

TEST_F(StoredWeights, ResumedRunsAreTheSameBits) {
  for (const MeshShape& mesh : {MeshShape{1, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const auto job = [&](const char* name) {
      return small_job(folder_ / (name + to_string(mesh)), repeatable(stores + "training { steps: 6 check_replicas: true } "));
    };
    const RunResult straight = train(job("straight"), on(mesh));
    RunRequest request = on(mesh);
    request.stop_at_step = 3;
    EXPECT_EQ(train(job("resumed"), request).steps.back().step(), 3u);
    request.stop_at_step = 0;
    request.resume = true;
    const RunResult resumed = train(job("resumed"), request);
    ASSERT_EQ(resumed.steps.size(), 3u);
    EXPECT_EQ(resumed.steps.back().loss(), straight.steps.back().loss());
    EXPECT_EQ(resumed.weights, straight.weights);
    EXPECT_EQ(resumed.states, straight.states);
  }
}

// bf16 to bf16 and to f32: the same numbers on any mesh. f32 to bf16: rounded, and told.
TEST_F(StoredWeights, CheckpointsGoFromOneToTheOther) {
  const auto job = [&](const std::string& changes) {
    return small_job(folder_.path(), repeatable(changes + "training { steps: 3 } evaluation { every_steps: 0 } "));
  };
  const auto resumed = [&](const std::string& changes, const MeshShape& mesh) {
    RunRequest request = on(mesh);
    request.resume = true;
    return start_only(job(changes), request);
  };
  const auto tells_of_rounding = [](const RunResult& result) {
    return std::ranges::any_of(result.events, [](const std::string& event) {
      return event.find("training.weights is BF16") != std::string::npos && event.find("rounded") != std::string::npos;
    });
  };
  const RunResult narrow = train(job(stores), on({1, 2}));
  for (const auto& [changes, mesh] : {std::pair{stores, MeshShape{2, 1}}, {stores, {1, 4}}, {computes, {1, 2}}}) {
    SCOPED_TRACE(changes + to_string(mesh));
    const RunResult again = resumed(changes, mesh);
    EXPECT_EQ(again.weights, narrow.weights);
    EXPECT_EQ(again.states, narrow.states);
    EXPECT_FALSE(tells_of_rounding(again));
  }
  const TemporaryFolder other;
  Job wide_job = small_job(other.path(), repeatable(computes + "training { steps: 3 } "));
  const RunResult wide = train(wide_job, on({1, 2}));
  wide_job.mutable_training()->set_weights(Training::BF16);
  RunRequest request = on({1, 2});
  request.resume = true;
  const RunResult now = start_only(wide_job, request);
  EXPECT_TRUE(tells_of_rounding(now));
  for (const auto& [name, values] : wide.weights) {
    EXPECT_EQ(now.weights.at(name), as_stored(name, values)) << name;
  }
  for (const auto& [name, values] : wide.states) {
    EXPECT_EQ(now.states.at(name), as_stored(name.substr(0, name.find(' ')), values)) << name;
  }
}

}  // namespace
}  // namespace ananke
