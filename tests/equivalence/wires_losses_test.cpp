// What wires of fewer bits cost in loss: whole runs of 300 steps on four ranks, which exchange tokens two by two.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

constexpr int steps = 300, last_steps = 20;

struct Losses {
  double training = 0, held_out = 0;  // the mean of the last steps; after the last
};

// Matrices of more than one block of 128 rows, and of less than one; biased routers.
Job job_of(const std::filesystem::path& run_dir, const std::string& wires, bool muon) {
  Job job = small_job(run_dir, R"(
    model { vocab_size: 160 hidden_size: 64 num_attention_heads: 6 head_dim: 24 moe_intermediate_size: 40 num_experts: 8
            decoder_sparse_step: 1 initializer_range: 0.02 scoring_func: SIGMOID e_score_correction_bias: true }
    training { steps: 300 } data { generated { documents: 4000 } } learning_rate { shape: COSINE minimum_factor: 0.1 }
    evaluation { every_steps: 0 })");
  job.clear_plugins();
  add_plugin(job, "adamw", "lr: 5e-3");
  add_plugin(job, "fsdp", wires);
  if (!muon) return job;
  add_plugin(job, "muon", "lr: 5e-3 adjust_lr_fn: MATCH_RMS_ADAMW");
  job.clear_optimizer();
  for (const auto& [match, use] : {std::pair{"experts|_proj", "muon"}, {".*", "adamw"}}) {
    OptimizerRule* rule = job.add_optimizer();
    rule->set_match(match);
    rule->set_use(use);
  }
  return job;
}

class WiresLosses : public testing::TestWithParam<bool> {
 protected:
  // gather and reduce as fsdp names them, of dense units and experts alike.
  Losses run(const std::string& gather, const std::string& reduce) {
    const std::string wires =
        fmt::format("gather_dense: {0} gather_experts: {0} reduce_dense: {1} reduce_experts: {1}", gather, reduce);
    RunRequest request{{1, 4, 2}};
    request.expert_chunks = 2;
    const RunResult result = train(job_of(folder_ / (gather + reduce), wires, GetParam()), request);
    EXPECT_EQ(result.steps.size(), static_cast<std::size_t>(steps));
    Losses losses;
    for (std::size_t i = result.steps.size() - last_steps; i < result.steps.size(); ++i) {
      losses.training += result.steps[i].loss() / last_steps;
    }
    losses.held_out = result.evaluations.back().loss();
    fmt::print("{:6} gather {:9} reduce {:20} loss of the last {} steps {:.4f}, held out {:.4f}\n",
               GetParam() ? "muon" : "adamw", gather, reduce, last_steps, losses.training, losses.held_out);
    expect_learnt(result);
    return losses;
  }
  // From ln 160 = 5.08 to well below the unigram's entropy; and the biases have moved, and sum to nothing.
  static void expect_learnt(const RunResult& result) {
    EXPECT_NEAR(result.steps.front().loss(), std::log(160.0), 0.1);
    EXPECT_LT(result.steps.back().loss(), 2.5);
    for (const int layer : {0, 1}) {
      const std::vector<float>& bias =
          result.weights.at(fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer));
      EXPECT_NEAR(std::accumulate(bias.begin(), bias.end(), 0.0), 0, 1e-5);
      EXPECT_NE(bias, std::vector<float>(bias.size()));
    }
  }
  static void expect_within(const Losses& got, const Losses& wanted, double bound) {
    EXPECT_NEAR(got.training, wanted.training, bound * wanted.training);
    EXPECT_NEAR(got.held_out, wanted.held_out, bound * wanted.held_out);
  }
  TemporaryFolder folder_;
};

TEST_P(WiresLosses, OfFp8AndBf16AreWithinAPercentOfThoseOfMoreBits) {
  const Losses wide = run("BF16", "FP32_REDUCE_SCATTER");
  expect_within(run("FP8_E4M3", "FP32_REDUCE_SCATTER"), wide, 0.01);
  expect_within(run("BF16", "BF16_ALL_TO_ALL"), wide, 0.01);
  expect_within(run("FP8_E4M3", "BF16_ALL_TO_ALL"), wide, 0.01);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, WiresLosses, testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "muon" : "adamw"); });

}  // namespace
}  // namespace ananke
