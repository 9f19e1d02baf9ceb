// Steps that compute in bf16 (training.compute), on a backend that rounds as one with such operators would.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/equivalence/rank_runs.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

const char* const bf16 = "training { compute: BF16 } ";
const char* const bf16_wires = "gather_dense: BF16 gather_experts: BF16";

RunRequest on(const MeshShape& mesh, int microbatches = 1) {
  RunRequest request{mesh, microbatches};
  request.expert_chunks = mesh.expert > 1 ? 2 : 0;
  request.rounding = true;
  return request;
}

class Compute : public testing::Test {
 protected:
  GradientResult gradients(const std::string& changes, const RunRequest& request, const std::string& wires = "") {
    Job job = small_job(folder_.path(), changes);
    if (!wires.empty()) add_plugin(job, "fsdp", wires);
    return first_gradients(std::move(job), request);
  }
  TemporaryFolder folder_;
};

TEST_F(Compute, IsRefusedOnABackendWithoutSuchOperators) {
  RunRequest request = on({1, 1});
  request.rounding = false;
  EXPECT_ERROR(gradients(bf16, request), ErrorKind::config,
               "training.compute is BF16, but backend 'backend_host' computes in no bf16; remove the setting, or use a "
               "plugin that does");
}

TEST_F(Compute, ADeterministicJobIsRefusedOnABackendThatPromisesNothing) {
  EXPECT_ERROR(gradients("training { deterministic: true } ", on({1, 1})), ErrorKind::config,
               "training.deterministic is set, but backend 'rounding_backend' does not promise the same bits in every "
               "run; remove the setting, or use a backend that does");
}

TEST_F(Compute, ADeterministicJobIsTheSameOnTheHost) {
  RunRequest request = on({1, 2});
  request.rounding = false;
  const GradientResult plain = gradients("", request), again = gradients("training { deterministic: true } ", request);
  EXPECT_EQ(again.loss, plain.loss);
  EXPECT_EQ(again.gradients, plain.gradients);
}

// Each gradient by the largest difference over its own largest element. bf16 keeps 8 bits: one rounding is 2^-9, and a
// gradient has gone through some dozens. It must also be seen that anything was rounded at all.
TEST_F(Compute, GradientsInBf16AreThoseInFp32UpToRounding) {
  // Rounding may turn a token's choice of experts; with this seed it turns none.
  const std::string seed = "training { seed: 2 } ";
  const GradientResult exact = gradients(seed, on({1, 1}));
  for (const char* recompute : {"", "training { recompute: FULL } "}) {
    for (const MeshShape& mesh : {MeshShape{1, 1}, {1, 2}, {2, 2}, {1, 2, 2}, {1, 4, 2}}) {
      SCOPED_TRACE(to_string(mesh) + recompute);
      const GradientResult rounded = gradients(seed + bf16 + recompute, on(mesh));
      EXPECT_NEAR(rounded.loss, exact.loss, 2e-3 * exact.loss);
      double largest = 0;
      for (const auto& [name, gradient] : exact.gradients) {
        const double difference = relative_difference(rounded.gradients.at(name), gradient);
        EXPECT_LE(difference, 0.06) << name;
        largest = std::max(largest, difference);
      }
      EXPECT_GT(largest, 1e-3);
    }
  }
}

// Weights are rounded once, wherever it happens: at the owner before they travel, or where they land.
TEST_F(Compute, TheWireInBf16ChangesNoBitAndSavesMemory) {
  for (const MeshShape& mesh : {MeshShape{1, 2}, {1, 4, 2}}) {
    const GradientResult wide = gradients(bf16, on(mesh)), narrow = gradients(bf16, on(mesh), bf16_wires);
    EXPECT_EQ(narrow.loss, wide.loss);
    EXPECT_EQ(narrow.gradients, wide.gradients);
    EXPECT_LT(narrow.planned.at("gather wire"), wide.planned.at("gather wire"));
  }
}

TEST_F(Compute, ActivationsAndGatheredWeightsTakeHalfTheMemory) {
  const auto wide = gradients("", on({1, 2, 2})).planned, narrow = gradients(bf16, on({1, 2, 2})).planned;
  for (const char* purpose : {"block inputs", "activation gradients"}) {
    EXPECT_EQ(2 * narrow.at(purpose), wide.at(purpose)) << purpose;
  }
  for (const char* purpose : {"saved activations", "tokens on their way to experts"}) {
    EXPECT_LT(narrow.at(purpose), wide.at(purpose)) << purpose;
  }
  for (const char* purpose : {"weights", "gradients", "gradient slots"}) {
    EXPECT_EQ(narrow.at(purpose), wide.at(purpose)) << purpose;
  }
}

TEST_F(Compute, LossesInBf16FollowThoseInFp32) {
  const auto losses = [&](const std::string& changes) {
    const TemporaryFolder folder;
    const RunResult result = train(small_job(folder.path(), changes), on({1, 2}, 2));
    std::vector<double> all;
    for (const StepRecord& step : result.steps) all.push_back(step.loss());
    return all;
  };
  const std::vector<double> exact = losses(""), rounded = losses(bf16);
  ASSERT_EQ(rounded.size(), exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(rounded[i], exact[i], 0.02) << "step " << i + 1;
}

}  // namespace
}  // namespace ananke
