// Every kind of router, its losses and its biases: results do not depend on ranks, loop order, recompute or evaluation.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

// Four layers, the second and fourth with 8 experts of which a token visits 4.
const std::string experts = "model { num_hidden_layers: 4 num_experts: 8 num_experts_per_tok: 4 ";
const std::string losses = "output_router_logits: true router_aux_loss_coef: 0.2 router_z_loss_coef: 0.01 ";
const std::string biased = "e_score_correction_bias: true router_bias_update_rate: 0.01 ";

struct RouterCase {
  std::string name, fields;
  friend void PrintTo(const RouterCase& one, std::ostream* to) { *to << one.name; }
};

// Of a model message; with a loss for every router.
std::vector<RouterCase> router_cases() {
  const std::string limited = "group_routing: GROUPS_LIMITED_TOP_K n_group: 4 topk_group: 2 ";
  const std::string per_group = "group_routing: TOP_K_PER_GROUP n_group: 2 ";
  return {{"softmax", losses},
          {"softmax as it is", losses + "norm_topk_prob: false routed_scaling_factor: 1.5 "},
          {"softmax of limited groups", losses + limited},
          {"softmax per group", losses + per_group},
          {"sigmoid", losses + "scoring_func: SIGMOID routed_scaling_factor: 2.5 " + biased},
          {"sigmoid of limited groups", losses + "scoring_func: SIGMOID " + limited + biased},
          {"sigmoid per group", losses + "scoring_func: SIGMOID norm_topk_prob: false " + per_group}};
}

Job router_job(const std::filesystem::path& run_dir, const std::string& fields, const std::string& more = "") {
  return small_job(run_dir, experts + fields + "} " + more);
}

void expect_equal(const GradientResult& got, const GradientResult& wanted, double bound) {
  EXPECT_NEAR(got.loss, wanted.loss, bound * wanted.loss);
  EXPECT_NEAR(got.auxiliary_loss, wanted.auxiliary_loss, bound * wanted.auxiliary_loss);
  EXPECT_NEAR(got.z_loss, wanted.z_loss, bound * wanted.z_loss);
  ASSERT_EQ(got.gradients.size(), wanted.gradients.size());
  for (const auto& [name, gradient] : wanted.gradients) {
    EXPECT_LE(relative_difference(got.gradients.at(name), gradient), bound) << name;
  }
}

// With an expert axis tokens are exchanged.
RunRequest on(const MeshShape& mesh, int microbatches) {
  RunRequest request{mesh, microbatches};
  request.expert_chunks = mesh.expert > 1 ? 2 : 0;
  return request;
}

class EveryRouter : public testing::TestWithParam<RouterCase> {
 protected:
  Job job(const std::string& more = "") const { return router_job(folder_.path(), GetParam().fields, more); }
  TemporaryFolder folder_;
};

// A microbatch is the same rows on any number of ranks; its losses and gradients are too.
TEST_P(EveryRouter, HasTheSameGradientsOnEveryMesh) {
  const GradientResult one = first_gradients(job(), {{1, 1}, 1});
  EXPECT_GT(one.auxiliary_loss, 0.2 * 4 * 0.9);  // coefficient x k when even; a little below where it is luckier
  EXPECT_GT(one.z_loss, 0);
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{2, 1}, MeshShape{2, 2}, MeshShape{1, 2, 2},
                                MeshShape{1, 4, 2}, MeshShape{1, 4, 4}, MeshShape{2, 2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    expect_equal(first_gradients(job(), on(mesh, 1)), one, 1e-5);
  }
}

// Ranks have none to all of a microbatch's tokens, others in every microbatch.
TEST_P(EveryRouter, HasTheSameGradientsOfUnevenTokensOnEveryMeshInBothOrders) {
  const GradientResult one = first_gradients(job(), {{1, 1}, 2});
  const Job layer_outer = job("training { microbatches_per_gather: 0 }");
  for (const MeshShape& mesh :
       {MeshShape{1, 1}, MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{1, 2, 2}, MeshShape{1, 4, 4}, MeshShape{1, 4, 2},
        MeshShape{2, 2}, MeshShape{2, 2, 2}, MeshShape{2, 4, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    RunRequest request = on(mesh, 2);
    request.uneven = true;
    expect_equal(first_gradients(job(), request), one, 1e-5);
    expect_equal(first_gradients(layer_outer, request), one, 1e-5);
  }
}

// Replicas hold the same bits of every gradient, the router's among them, also where the routers have losses.
TEST_P(EveryRouter, HasBitEqualGradientsOnAllReplicas) {
  for (const MeshShape& mesh : {MeshShape{2, 2}, MeshShape{2, 2, 2}}) {
    const GradientResult result = first_gradients(job(), on(mesh, 2));
    for (const auto& [name, replicas] : result.by_replica) {
      ASSERT_EQ(replicas.size(), 2u) << name;
      EXPECT_EQ(replicas[0], replicas[1]) << name;
    }
  }
}

TEST_P(EveryRouter, OfRecomputeIsTheSameBitsAndCountsTheSame) {
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 2, 2}}) {
    const std::string name = to_string(mesh);
    const Job full = router_job(folder_ / (name + " full"), GetParam().fields, "training { steps: 3 recompute: FULL }");
    const Job none = router_job(folder_ / (name + " none"), GetParam().fields, "training { steps: 3 }");
    const RunResult recomputed = train(full, on(mesh, 2)), kept = train(none, on(mesh, 2));
    EXPECT_EQ(recomputed.weights, kept.weights);
    ASSERT_EQ(recomputed.steps.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(recomputed.steps[i].routing().SerializeAsString(), kept.steps[i].routing().SerializeAsString());
      EXPECT_EQ(recomputed.steps[i].auxiliary_loss(), kept.steps[i].auxiliary_loss());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Routers, EveryRouter, testing::ValuesIn(router_cases()), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name) c = c == ' ' ? '_' : c;
  return name;
});

// A step of two microbatches is the mean of both, weighted by their valid tokens.
TEST(RouterLosses, OfMicrobatchesCountByTheirShareOfValidTokens) {
  const TemporaryFolder folder;
  const Job both = router_job(folder.path(), losses);
  const Job half = router_job(folder.path(), losses, "training { rows_per_step: 4 }");
  const GradientResult whole = first_gradients(both, {{1, 1}, 2}), first = first_gradients(half, {{1, 1}}),
                       second = first_gradients(half, {.mesh = {1, 1}, .skip_rows = 4});
  ASSERT_EQ(first.valid_targets + second.valid_targets, whole.valid_targets);
  const double a = static_cast<double>(first.valid_targets) / static_cast<double>(whole.valid_targets), b = 1 - a;
  EXPECT_NEAR(whole.auxiliary_loss, a * first.auxiliary_loss + b * second.auxiliary_loss, 1e-6 * whole.auxiliary_loss);
  EXPECT_NEAR(whole.z_loss, a * first.z_loss + b * second.z_loss, 1e-6 * whole.z_loss);
  for (const auto& [name, gradient] : whole.gradients) {
    std::vector<float> mean(gradient.size());
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] = static_cast<float>(a * static_cast<double>(first.gradients.at(name)[i]) +
                                   b * static_cast<double>(second.gradients.at(name)[i]));
    }
    EXPECT_LE(relative_difference(mean, gradient), 1e-5) << name;
  }
}

TEST(RouterLosses, AreReportedApartFromTheCrossEntropy) {
  const TemporaryFolder folder;
  const std::string steps = "training { steps: 2 }";
  const RunResult with = train(router_job(folder / "with", losses, steps), {{1, 2}});
  const RunResult without = train(router_job(folder / "without", "", steps), {{1, 2}});
  EXPECT_EQ(with.steps[0].loss(), without.steps[0].loss());
  EXPECT_NE(with.steps[1].loss(), without.steps[1].loss());
  EXPECT_GT(with.steps[0].auxiliary_loss(), 0.7);
  EXPECT_GT(with.steps[0].router_z_loss(), 0);
  EXPECT_FALSE(without.steps[0].has_auxiliary_loss());
  EXPECT_FALSE(without.steps[0].has_router_z_loss());
  EXPECT_EQ(with.evaluations.at(0).loss() > 0, true);
}

TEST(RouterLosses, EvenTheLoadOut) {
  const TemporaryFolder folder;
  const auto worst = [](const StepRecord& record) {
    return *std::max_element(record.routing().imbalance().begin(), record.routing().imbalance().end());
  };
  const std::string steps = "training { steps: 40 }";
  const RunResult free = train(router_job(folder / "free", "", steps), {{1, 1}});
  const RunResult even =
      train(router_job(folder / "even", "output_router_logits: true router_aux_loss_coef: 1 ", steps), {{1, 1}});
  EXPECT_LT(worst(even.steps.back()), worst(free.steps.back()));
}

std::vector<std::string> bias_names(const RunResult& run) {
  std::vector<std::string> names;
  for (const auto& [name, values] : run.weights) {
    if (name.ends_with("e_score_correction_bias")) names.push_back(name);
  }
  return names;
}

TEST(RouterBiases, MoveByTheRateWithTheMeanRemovedAndAreReported) {
  const TemporaryFolder folder;
  const RunResult run = train(router_job(folder.path(), biased, "training { steps: 1 }"), {{1, 2}, 2});
  const RoutingRecord& routing = run.steps.at(0).routing();
  EXPECT_EQ(bias_names(run), (std::vector<std::string>{"model.layers.1.mlp.gate.e_score_correction_bias",
                                                       "model.layers.3.mlp.gate.e_score_correction_bias"}));
  ASSERT_EQ(routing.layer_size(), 2);
  for (int i = 0; i < 2; ++i) {
    const std::vector<float>& bias =
        run.weights.at("model.layers." + std::to_string(routing.layer(i)) + ".mlp.gate.e_score_correction_bias");
    EXPECT_NEAR(std::accumulate(bias.begin(), bias.end(), 0.0), 0, 1e-7);
    const auto [lowest, highest] = std::minmax_element(bias.begin(), bias.end());
    EXPECT_EQ(routing.bias_min(i), static_cast<double>(*lowest));
    EXPECT_EQ(routing.bias_max(i), static_cast<double>(*highest));
    EXPECT_NEAR(*highest - *lowest, 2 * 0.01, 1e-7) << "somebody is above the mean, somebody below";
    EXPECT_EQ(routing.load_mean(i), 8 * 32 * 4 / 8.0);
    EXPECT_EQ(routing.imbalance(i), routing.load_max(i) / routing.load_mean(i));
    EXPECT_LT(routing.load_min(i), routing.load_max(i));
    EXPECT_GT(routing.entropy(i), 0.5 * std::log(8.0));
    EXPECT_LE(routing.entropy(i), std::log(8.0));
    EXPECT_EQ(routing.dropped(i), 0);
  }
}

TEST(RouterBiases, OfFixedLayersStayAndOthersMove) {
  const TemporaryFolder folder;
  const RunResult run =
      train(router_job(folder.path(), biased + "router_bias_fixed_layers: 1 ", "training { steps: 2 }"), {{1, 2}});
  EXPECT_EQ(run.weights.at("model.layers.1.mlp.gate.e_score_correction_bias"), std::vector<float>(8));
  EXPECT_NE(run.weights.at("model.layers.3.mlp.gate.e_score_correction_bias"), std::vector<float>(8));
}

TEST(RouterBiases, OfAModelWithoutExpertsAreNone) {
  const TemporaryFolder folder;
  const RunResult run = train(small_job(folder.path(), "model { num_experts: 0 e_score_correction_bias: true " +
                                                           losses + "} training { steps: 2 }"),
                              {{1, 2}});
  EXPECT_TRUE(bias_names(run).empty());
  EXPECT_FALSE(run.steps.at(1).has_routing());
  EXPECT_FALSE(run.steps.at(1).has_auxiliary_loss());
}

TEST(RouterBiases, AreInCheckpointsForAnyMeshAndGoOnTheSame) {
  const TemporaryFolder folder;
  const std::string rows = "training { steps: 4 rows_per_step: 8 } evaluation { every_steps: 0 }";
  const RunResult straight = train(router_job(folder / "straight", biased, rows), {{1, 4}});
  const Job job = router_job(folder / "resumed", biased, rows);
  const RunResult first = train(job, {{1, 4}, 1, false, 2});
  EXPECT_EQ(bias_names(first).size(), 2u);
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{2, 1}, MeshShape{2, 4}}) {
    SCOPED_TRACE(to_string(mesh));
    EXPECT_EQ(start_only(job, {mesh, 1, true}).weights, first.weights);
  }
  EXPECT_EQ(train(job, {{1, 4}, 1, true}).weights, straight.weights);
}

TEST(RouterBiases, DoNotDependOnEvaluation) {
  const TemporaryFolder folder;
  const RunResult often = train(router_job(folder / "a", biased, "evaluation { every_steps: 1 }"), {{1, 2}});
  const RunResult once = train(router_job(folder / "b", biased, "evaluation { every_steps: 0 }"), {{1, 2}});
  EXPECT_EQ(often.weights, once.weights);
  ASSERT_EQ(often.steps.size(), once.steps.size());
  for (std::size_t i = 0; i < once.steps.size(); ++i) {
    EXPECT_EQ(often.steps[i].routing().SerializeAsString(), once.steps[i].routing().SerializeAsString());
  }
}

TEST(RouterBiases, StayWhereAStepIsNotFinite) {
  const TemporaryFolder folder;
  const RunResult run =
      train(router_job(folder.path(), biased + "initializer_range: 1e30 ", "training { steps: 2 on_non_finite: SKIP }"),
            {{1, 2}});
  EXPECT_TRUE(run.steps.at(1).skipped());
  for (const std::string& name : bias_names(run)) EXPECT_EQ(run.weights.at(name), std::vector<float>(8)) << name;
}

TEST(RouterBiases, EvenTheLoadOut) {
  const TemporaryFolder folder;
  const auto worst = [](const StepRecord& record) {
    return *std::max_element(record.routing().imbalance().begin(), record.routing().imbalance().end());
  };
  const std::string steps = "training { steps: 40 }";
  const RunResult free = train(router_job(folder / "free", "scoring_func: SIGMOID ", steps), {{1, 1}});
  const RunResult even = train(router_job(folder / "even",
                                          "scoring_func: SIGMOID e_score_correction_bias: true "
                                          "router_bias_update_rate: 0.003 ",
                                          steps),
                               {{1, 1}});
  EXPECT_LT(worst(even.steps.back()), worst(free.steps.back()));
}

TEST(ForcedBalance, GivesEveryExpertTheSameAndIsMarkedInEveryStep) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 4}}) {
    const RunResult run = train(
        router_job(folder / to_string(mesh), losses + biased, "training { steps: 2 force_balanced_routing: true }"),
        {mesh, 2});
    for (const StepRecord& record : run.steps) {
      EXPECT_TRUE(record.forced_balance());
      for (int i = 0; i < record.routing().layer_size(); ++i) {
        EXPECT_EQ(record.routing().load_min(i), record.routing().load_max(i));
        EXPECT_EQ(record.routing().imbalance(i), 1.0);
      }
    }
    for (const std::string& name : bias_names(run)) EXPECT_EQ(run.weights.at(name), std::vector<float>(8)) << name;
  }
}

}  // namespace
}  // namespace ananke
