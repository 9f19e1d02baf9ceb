// Wires of fewer bits with everything else: meshes, exchanged tokens, muon, node copies, resumed runs.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/equivalence/rank_runs.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

const char* const bf16_gather = "gather_dense: BF16 gather_experts: BF16 ";
const char* const fp8_gather = "gather_dense: FP8_E4M3 gather_experts: FP8_E4M3 ";
const char* const bf16_reduce = "reduce_dense: BF16_ALL_TO_ALL reduce_experts: BF16_ALL_TO_ALL ";

Job with_wires(Job job, const std::string& wires) {
  if (!wires.empty()) add_plugin(job, "fsdp", wires);
  return job;
}

RunRequest on(const MeshShape& mesh, int microbatches = 1) {
  RunRequest request{mesh, microbatches};
  request.expert_chunks = mesh.expert > 1 ? 2 : 0;
  return request;
}

void expect_equal(const GradientResult& got, const GradientResult& wanted, double bound) {
  EXPECT_NEAR(got.loss, wanted.loss, bound * wanted.loss);
  ASSERT_EQ(got.gradients.size(), wanted.gradients.size());
  for (const auto& [name, gradient] : wanted.gradients) {
    EXPECT_LE(relative_difference(got.gradients.at(name), gradient), bound) << name;
  }
}

class Wires : public testing::Test {
 protected:
  GradientResult gradients(const std::string& wires, const RunRequest& request, const std::string& changes = "") {
    return first_gradients(with_wires(small_job(folder_.path(), changes), wires), request);
  }
  TemporaryFolder folder_;
};

// Every rank that gathers a unit computes with the same rounded weights. So gradients depend on the wire and not on the
// mesh, where both units of a layer are cut: to 1e-5, though the rounding itself moves them by a hundred times more.
TEST_F(Wires, OfOneFormatHaveTheSameGradientsOnEveryMesh) {
  const GradientResult plain = gradients("", on({1, 2}));
  const GradientResult wanted = gradients(bf16_gather, on({1, 2}));
  double moved = 0;
  for (const auto& [name, gradient] : wanted.gradients) {
    moved = std::max(moved, relative_difference(gradient, plain.gradients.at(name)));
  }
  EXPECT_GT(moved, 1e-3);
  expect_equal(wanted, plain, 0.02);
  for (const MeshShape& mesh : {MeshShape{1, 4}, MeshShape{2, 2}, MeshShape{1, 8}, MeshShape{1, 4, 2},
                                MeshShape{2, 4, 2}, MeshShape{1, 8, 2}, MeshShape{1, 8, 4}}) {
    for (const bool uneven : {false, true}) {
      SCOPED_TRACE(to_string(mesh) + (uneven ? " uneven" : ""));
      RunRequest request = on(mesh);
      request.uneven = uneven;
      expect_equal(gradients(bf16_gather, request), wanted, 1e-5);
      expect_equal(gradients(std::string(bf16_gather) + "node_copy: true", request), wanted, 1e-5);
    }
  }
}

// Whole experts are rounded block by block wherever they are owned. Where a rank's range ends inside a block the
// block's two parts have scales of their own, which changes only what is too small for the larger scale.
TEST_F(Wires, OfFp8HaveTheSameGradientsWhereExpertsAreWholeAndAlmostWhereTheyAreCut) {
  const std::string whole = "gather_dense: BF16 gather_experts: FP8_E4M3 ";
  const GradientResult wanted = gradients(whole, on({1, 2}));
  for (const MeshShape& mesh : {MeshShape{2, 2}, MeshShape{1, 4, 2}, MeshShape{2, 4, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    expect_equal(gradients(whole, on(mesh)), wanted, 1e-5);
  }
  const GradientResult all = gradients(fp8_gather, on({1, 2}));
  EXPECT_NEAR(all.loss, gradients("", on({1, 2})).loss, 0.01 * all.loss);  // one token more or less moves gradients far
  for (const MeshShape& mesh : {MeshShape{1, 4}, MeshShape{1, 8}, MeshShape{1, 4, 2}, MeshShape{1, 8, 4}}) {
    SCOPED_TRACE(to_string(mesh));
    expect_equal(gradients(fp8_gather, on(mesh)), all, 0.01);
  }
}

// Each rank's gradient is rounded once, by at most 2^-8 of itself, and the sum is f32.
TEST_F(Wires, OfBf16ReductionsRoundEveryRanksGradientOnce) {
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{2, 2}, MeshShape{1, 8}, MeshShape{1, 4, 2},
                                MeshShape{2, 4, 2}, MeshShape{1, 8, 4}}) {
    for (const bool uneven : {false, true}) {
      SCOPED_TRACE(to_string(mesh) + (uneven ? " uneven" : ""));
      RunRequest request = on(mesh);
      request.uneven = uneven;
      const GradientResult plain = gradients("", request), rounded = gradients(bf16_reduce, request);
      EXPECT_EQ(rounded.loss, plain.loss);
      expect_equal(rounded, plain, 0.01);
      for (const char* exact : {"model.norm.weight", "model.layers.1.mlp.gate.weight"}) {
        EXPECT_EQ(rounded.gradients.at(exact), plain.gradients.at(exact)) << exact << " travels as f32";
      }
      EXPECT_NE(rounded.gradients.at("model.embed_tokens.weight"), plain.gradients.at("model.embed_tokens.weight"));
    }
  }
}

TEST_F(Wires, DoNotDependOnRecomputeNodeCopiesOrOrderWhereTheyRoundTheSame) {
  const std::string wires = std::string(fp8_gather) + bf16_reduce;
  for (const MeshShape& mesh : {MeshShape{1, 4}, MeshShape{1, 4, 2}, MeshShape{2, 4, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunRequest request = on(mesh, 8 / mesh.ranks());
    const GradientResult wanted = gradients(wires, request);
    EXPECT_EQ(gradients(wires + "node_copy: true", request).gradients, wanted.gradients);
    EXPECT_EQ(gradients(wires + "prefetch_blocks: 0", request).gradients, wanted.gradients);
    EXPECT_EQ(gradients(wires + "reshard_after_forward: false", request).gradients, wanted.gradients);
    EXPECT_EQ(gradients(wires, request, "training { recompute: FULL }").gradients, wanted.gradients);
    // One reduction, and rounding, for both microbatches.
    expect_equal(gradients(wires, request, "training { microbatches_per_gather: 0 }"), wanted, 0.01);
  }
}

// R1: what replicas hold of one parameter, the router's among them, must be equal to the last bit.
TEST_F(Wires, HaveBitEqualGradientsOnAllReplicas) {
  for (const MeshShape& mesh : {MeshShape{2, 2}, MeshShape{2, 2, 2}, MeshShape{2, 4, 2}, MeshShape{4, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    RunRequest request = on(mesh);
    request.uneven = true;
    const GradientResult result = gradients(std::string(fp8_gather) + bf16_reduce, request);
    bool router_seen = false;
    for (const auto& [name, replicas] : result.by_replica) {
      ASSERT_EQ(replicas.size(), static_cast<std::size_t>(mesh.replicate)) << name;
      for (const std::vector<float>& replica : replicas) EXPECT_EQ(replica, replicas[0]) << name;
      router_seen = router_seen || name.find("mlp.gate.weight") != std::string::npos;
    }
    EXPECT_TRUE(router_seen);
  }
}

// R1 again: the router's gradient is that of all ranks' tokens, f32 whatever the wires of the matrices.
TEST_F(Wires, LetTheRouterLearnFromTheTokensOfAllRanks) {
  const std::string gate = "model.layers.1.mlp.gate.weight";
  const GradientResult one = gradients("", on({1, 1}));
  for (const MeshShape& mesh : {MeshShape{1, 2, 2}, MeshShape{1, 4, 2}}) {
    RunRequest request = on(mesh);
    request.uneven = true;
    EXPECT_LE(relative_difference(gradients(bf16_reduce, request).gradients.at(gate), one.gradients.at(gate)), 1e-5);
  }
}

// Muon for matrices, biased routers, exchanged tokens where there is an expert axis, all wires, two microbatches a
// gather, copies in the node.
Job everything(const std::filesystem::path& run_dir, const std::string& changes = "") {
  Job job = small_job(run_dir,
                      "model { scoring_func: SIGMOID e_score_correction_bias: true router_bias_update_rate: 0.01 } "
                      "training { rows_per_step: 16 steps: 8 check_replicas: true microbatches_per_gather: 2 } " +
                          changes);
  job.clear_optimizer();
  for (const auto& [match, use] : {std::pair{"experts|_proj", "muon"}, {".*", "adamw"}}) {
    OptimizerRule* rule = job.add_optimizer();
    rule->set_match(match);
    rule->set_use(use);
  }
  add_plugin(job, "muon", "lr: 0.01");
  add_plugin(job, "fsdp", std::string(fp8_gather) + bf16_reduce + "node_copy: true");
  return job;
}

// More ranks than experts and fewer, ranks that own nothing of a unit, replicas.
const MeshShape everything_on[] = {{1, 1},    {1, 4},    {2, 2},    {1, 8},   {1, 4, 2},
                                   {2, 2, 2}, {1, 8, 4}, {1, 8, 8}, {2, 4, 2}};

int microbatches(const MeshShape& mesh) { return mesh.ranks() == 8 ? 2 : 4; }

TEST(WiresTraining, OfTwoRunsAndOfAResumedOneIsTheSameBits) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : everything_on) {
    const std::string name = to_string(mesh);
    SCOPED_TRACE(name);
    const RunRequest whole = on(mesh, microbatches(mesh));
    const RunResult straight = train(everything(folder / ("a " + name)), whole);
    const RunResult second = train(everything(folder / ("b " + name)), whole);
    EXPECT_EQ(second.weights, straight.weights);
    EXPECT_EQ(second.states, straight.states);
    const Job job = everything(folder / ("c " + name));
    RunRequest part = whole;
    for (const std::uint64_t stop : {3, 6, 0}) {  // resumed twice
      part.stop_at_step = stop;
      const RunResult run = train(job, part);
      part.resume = true;
      for (const StepRecord& step : run.steps) {
        EXPECT_EQ(step.loss(), straight.steps.at(step.step() - 1).loss()) << "step " << step.step();
      }
      if (stop > 0) {
        EXPECT_EQ(run.steps.back().step(), stop);
        continue;
      }
      EXPECT_EQ(run.weights, straight.weights);
      EXPECT_EQ(run.states, straight.states);
      EXPECT_EQ(run.evaluations.back().loss(), straight.evaluations.back().loss());
    }
  }
}

TEST(WiresTraining, WithUpdatesSharedByReplicasIsTheSameBits) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{2, 2, 2}, MeshShape{2, 4, 2}}) {
    const std::string name = to_string(mesh);
    SCOPED_TRACE(name);
    const RunResult apart = train(everything(folder / ("apart " + name)), on(mesh, microbatches(mesh)));
    const RunResult shared =
        train(everything(folder / ("shared " + name), "matrix_updates { share_replicas: true bucket: \"8 KiB\" }"),
              on(mesh, microbatches(mesh)));
    EXPECT_EQ(shared.weights, apart.weights);
    EXPECT_EQ(shared.states, apart.states);
  }
}

// Masters are f32 whatever travels: a checkpoint is the same bits on another mesh.
TEST(WiresTraining, ACheckpointIsTheSameBitsOnEveryMeshWithAnyWires) {
  const TemporaryFolder folder;
  const Job job = everything(folder.path(), "training { steps: 2 } evaluation { every_steps: 0 }");
  const RunResult saved = train(job, on({1, 4, 2}, 4));
  for (const MeshShape& mesh : everything_on) {
    SCOPED_TRACE(to_string(mesh));
    RunRequest request = on(mesh, microbatches(mesh));
    request.resume = true;
    const RunResult loaded = start_only(job, request);
    EXPECT_EQ(loaded.weights, saved.weights);
    EXPECT_EQ(loaded.states, saved.states);
  }
}

TEST(WiresTraining, FollowsTheRunOfOneRank) {
  const TemporaryFolder folder;
  const RunResult one = train(everything(folder / "one"), on({1, 1}, 4));
  EXPECT_LT(one.steps.back().loss(), 0.99 * one.steps.front().loss());
  for (const MeshShape& mesh : everything_on) {
    const std::string name = to_string(mesh);
    SCOPED_TRACE(name);
    const RunResult run = train(everything(folder / name), on(mesh, microbatches(mesh)));
    ASSERT_EQ(run.steps.size(), one.steps.size());
    for (std::size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_NEAR(run.steps[i].loss(), one.steps[i].loss(), 0.005 * one.steps[i].loss()) << "step " << i + 1;
    }
  }
}

// R6: by the rate, mean removed, the same bits on every rank (train() compares them).
TEST(WiresTraining, MovesTheRoutersBiasesAsWithoutWires) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{1, 4}, MeshShape{1, 4, 2}, MeshShape{2, 2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult run = train(everything(folder / to_string(mesh), "training { steps: 1 }"), on(mesh, 4));
    const std::vector<float>& bias = run.weights.at("model.layers.1.mlp.gate.e_score_correction_bias");
    EXPECT_NEAR(std::accumulate(bias.begin(), bias.end(), 0.0), 0, 1e-7);
    const auto [lowest, highest] = std::minmax_element(bias.begin(), bias.end());
    EXPECT_NEAR(*highest - *lowest, 2 * 0.01, 1e-7);
    EXPECT_EQ(run.steps[0].routing().dropped(0), 0);
  }
}

TEST(WiresMisuse, IsRefusedByFieldAndValue) {
  const TemporaryFolder folder;
  const Job copies = with_wires(small_job(folder.path()), "node_copy: true reshard_after_forward: false");
  EXPECT_ERROR(train(copies, {{1, 2}}), ErrorKind::config, "node_copy", "reshard_after_forward", "remove one");
}

}  // namespace
}  // namespace ananke
