// Inputs that wait on the host change no bit; in fp8 they change little.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"
#include "tests/test_gpus.h"

namespace ananke {
namespace {

const std::string model = "model { num_hidden_layers: 6 } ";
const char* const group = "training { microbatches_per_gather: 0 } ";

RunRequest on(const MeshShape& mesh, int microbatches = 2) {
  RunRequest request{mesh, microbatches};
  request.expert_chunks = mesh.expert > 1 ? 2 : 0;
  return request;
}

class Offload : public testing::Test {
 protected:
  Job job(const std::string& more, const std::string& config) {
    Job job = small_job(folder_.path(), model + more);
    if (!config.empty()) add_plugin(job, "activation_offload", config);
    return job;
  }
  TemporaryFolder folder_;
};

TEST_F(Offload, IsTheSameBitsForEveryFractionWindowRecomputeAndLoopOrder) {
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 2, 2}}) {
    for (const char* order : {"", group}) {
      for (const char* recompute : {"", "training { recompute: SELECTIVE } ", "training { recompute: FULL } "}) {
        const std::string more = std::string(order) + recompute;
        const GradientResult resident = first_gradients(job(more, ""), on(mesh));
        for (const char* config :
             {"fraction: 1", "fraction: 0.5", "fraction: 0", "window: \"0\"", "window: \"1 MiB\""}) {
          SCOPED_TRACE(to_string(mesh) + " " + more + config);
          const GradientResult offloaded = first_gradients(job(more, config), on(mesh));
          EXPECT_EQ(offloaded.loss, resident.loss);
          EXPECT_EQ(offloaded.gradients, resident.gradients);
        }
      }
    }
  }
}

// Steps and evaluations, whose inputs nobody takes back, and ranks without a token.
TEST_F(Offload, TrainsToTheSameWeights) {
  for (const char* order : {"", group}) {
    const RunResult resident = train(job(order, ""), on({1, 2}, 4)),
                    offloaded = train(job(order, "fraction: 1"), on({1, 2}, 4));
    EXPECT_EQ(offloaded.weights, resident.weights);
    ASSERT_EQ(offloaded.evaluations.size(), resident.evaluations.size());
    EXPECT_EQ(offloaded.evaluations.back().loss(), resident.evaluations.back().loss());
  }
  RunRequest uneven = on({1, 4});
  uneven.uneven = true;
  EXPECT_EQ(first_gradients(job("", "fraction: 1"), uneven).gradients, first_gradients(job("", ""), uneven).gradients);
}

TEST_F(Offload, SaysWhatItMoved) {
  const RunResult run = train(job("", "fraction: 1"), on({1, 2}, 4));
  ASSERT_FALSE(run.steps.empty());
  for (const StepRecord& step : run.steps) {
    ASSERT_TRUE(step.has_offload());
    // 4 microbatches of one row of 32 tokens of 24 values; 5 of 6 layers, of which 3 places of the device keep the
    // last.
    EXPECT_EQ(step.offload().bytes_out(), 4u * 5 * 32 * 24 * 4);
    EXPECT_EQ(step.offload().bytes_in(), 4u * 2 * 32 * 24 * 4);
    EXPECT_GT(step.offload().copy_seconds(), 0);
    EXPECT_GE(step.offload().stall_seconds(), 0);
    EXPECT_GE(step.offload().overlapped(), 0);
    EXPECT_LE(step.offload().overlapped(), 1);
  }
  for (const StepRecord& step : train(job("", ""), on({1, 2}, 4)).steps) EXPECT_FALSE(step.has_offload());
}

TEST_F(Offload, TakesTheMemoryOffTheDevice) {
  const auto resident = first_gradients(job("", ""), on({1, 2}, 4)).planned;
  const auto offloaded = first_gradients(job("", "fraction: 1"), on({1, 2}, 4)).planned;
  const std::uint64_t one = 32 * 24 * 4;
  EXPECT_EQ(resident.at("block inputs"), 8 * one);
  EXPECT_EQ(offloaded.at("block inputs"), 5 * one);  // the last layer's, the head's, and a window of three
  EXPECT_EQ(offloaded.at("block inputs (host)"), 5 * one);
  const auto fewer = first_gradients(job("", "budget: \"6KiB\""), on({1, 2}, 4)).planned;
  EXPECT_EQ(fewer.at("block inputs (host)"), 2 * one);
  Job resolved = job("", "fraction: 0.5");  // what is resolved may be less than what is asked for, and no more
  resolved.mutable_resolved()->set_offload_fraction(0.2);
  EXPECT_EQ(first_gradients(resolved, on({1, 2}, 4)).planned.at("block inputs (host)"), one);
  resolved.mutable_resolved()->set_offload_fraction(0.9);
  EXPECT_EQ(first_gradients(resolved, on({1, 2}, 4)).planned.at("block inputs (host)"), 3 * one);
}

double cosine(const GradientResult& a, const GradientResult& b) {
  double ab = 0, aa = 0, bb = 0;
  for (const auto& [name, gradient] : a.gradients) {
    const std::vector<float>& other = b.gradients.at(name);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double x = gradient[i], y = other[i];
      ab += x * y, aa += x * x, bb += y * y;
    }
  }
  return ab / std::sqrt(aa * bb);
}

TEST_F(Offload, InFp8HasGradientsOfTheSameDirection) {
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 2, 2}}) {
    for (const bool bf16 : {false, true}) {
      const std::string more = bf16 ? "training { compute: BF16 } " : "";
      RunRequest request = on(mesh);
      request.rounding = bf16 && test_backend(mesh.ranks()) == std::string("backend_host");
      const GradientResult exact = first_gradients(job(more, ""), request);
      const GradientResult rounded = first_gradients(job(more, "wire: FP8"), request);
      EXPECT_EQ(rounded.loss, exact.loss) << "forward is of what was never rounded";
      EXPECT_GE(cosine(rounded, exact), 0.999);
      EXPECT_LT(cosine(rounded, exact), 1.0);
      // How much of it is on the device at a time does not show.
      EXPECT_EQ(first_gradients(job(more, "wire: FP8 window: \"1 MiB\""), request).gradients, rounded.gradients);
      EXPECT_EQ(first_gradients(job(more, "wire: FP8 window: \"0\""), request).gradients, rounded.gradients);
    }
  }
}

TEST_F(Offload, LossesOf300StepsInFp8AreWithinAPercent) {
  const std::string steps = "training { steps: 300 } evaluation { every_steps: 0 } ";
  const RunResult exact = train(job(steps, ""), on({1, 2})), rounded = train(job(steps, "wire: FP8"), on({1, 2}));
  ASSERT_EQ(rounded.steps.size(), 300u);
  for (std::size_t i = 0; i < 300; ++i) {
    EXPECT_NEAR(rounded.steps[i].loss(), exact.steps[i].loss(), 0.01 * exact.steps[i].loss()) << "step " << i + 1;
  }
  EXPECT_LT(exact.steps.back().loss(), 0.8 * exact.steps.front().loss());
}

}  // namespace
}  // namespace ananke
