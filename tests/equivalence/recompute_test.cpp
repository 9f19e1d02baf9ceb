// What is kept from forward to backward, and what is made again, changes no bit of any gradient: for every operator,
// router, mesh and loop order.
#include <gtest/gtest.h>

#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"
#include "tests/test_gpus.h"

namespace ananke {
namespace {

// Two dense layers and two with experts.
const std::string model = "model { num_hidden_layers: 4 num_experts: 8 num_experts_per_tok: 4 ";
const std::string losses = "output_router_logits: true router_aux_loss_coef: 0.2 router_z_loss_coef: 0.01 ";
const char* const routers[] = {
    "", "scoring_func: SIGMOID routed_scaling_factor: 2.5 e_score_correction_bias: true router_bias_update_rate: 0.01 ",
    "group_routing: GROUPS_LIMITED_TOP_K n_group: 4 topk_group: 2 ", "group_routing: TOP_K_PER_GROUP n_group: 2 "};
const char* const operators[] = {"NORMS", "PROJECTIONS", "ATTENTION", "RESIDUAL", "ROUTER", "DISPATCH", "GROUPED_MLP"};

RunRequest on(const MeshShape& mesh, int microbatches = 2) {
  RunRequest request{mesh, microbatches};
  request.expert_chunks = mesh.expert > 1 ? 3 : 0;
  return request;
}

std::string selective(const std::string& names) {
  return "training { recompute: SELECTIVE " + (names.empty() ? "" : "recompute_operators: [" + names + "] ") + "} ";
}

class RecomputeEquivalence : public testing::Test {
 protected:
  GradientResult gradients(const std::string& router, const std::string& more, const RunRequest& request) {
    return first_gradients(small_job(folder_.path(), model + losses + router + "} " + more), request);
  }
  void expect_same(const std::string& router, const std::string& more, const RunRequest& request,
                   const GradientResult& kept) {
    SCOPED_TRACE(router + more + to_string(request.mesh));
    const GradientResult again = gradients(router, more, request);
    EXPECT_EQ(again.loss, kept.loss);
    EXPECT_EQ(again.auxiliary_loss, kept.auxiliary_loss);
    EXPECT_EQ(again.gradients, kept.gradients);
  }
  TemporaryFolder folder_;
};

// One operator alone, all but one, and the usual choice.
TEST_F(RecomputeEquivalence, OfEveryOperatorIsTheSameBits) {
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 2, 2}}) {
    const GradientResult kept = gradients("", "", on(mesh));
    expect_same("", selective(""), on(mesh), kept);
    for (const char* one : operators) {
      expect_same("", selective(one), on(mesh), kept);
      std::string others;
      for (const char* other : operators) {
        if (other != one) others += (others.empty() ? "" : ", ") + std::string(other);
      }
      expect_same("", selective(others), on(mesh), kept);
    }
  }
}

TEST_F(RecomputeEquivalence, IsTheSameBitsForEveryRouterMeshAndLoopOrder) {
  for (const char* router : routers) {
    for (const char* order : {"", "training { microbatches_per_gather: 0 } "}) {
      for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{2, 2}, MeshShape{1, 4, 2}, MeshShape{2, 2, 2}}) {
        const GradientResult kept = gradients(router, order, on(mesh));
        expect_same(router, order + selective(""), on(mesh), kept);
        expect_same(router, std::string(order) + "training { recompute: FULL } ", on(mesh), kept);
      }
    }
  }
}

TEST_F(RecomputeEquivalence, DiffersFromLayerToLayer) {
  const std::string ranges =
      "training { recompute: FULL recompute_layers { first: 1 last: 1 recompute: NONE } "
      "recompute_layers { first: 2 last: 3 recompute: SELECTIVE operators: [GROUPED_MLP, NORMS] } } ";
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 4, 4}}) {
    for (const char* order : {"", "training { microbatches_per_gather: 0 } "}) {
      const GradientResult kept = gradients("", order, on(mesh));
      expect_same("", order + ranges, on(mesh), kept);
    }
  }
}

// Rounding where values are stored happens at the same places: on GPUs in kernels of bf16, else on a backend that
// rounds.
TEST_F(RecomputeEquivalence, IsTheSameBitsWhereActivationsAreRounded) {
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 2, 2}}) {
    RunRequest request = on(mesh);
    request.rounding = test_backend(mesh.ranks()) == std::string("backend_host");
    const std::string bf16 =
        request.rounding ? "training { compute: BF16 } " : "training { compute: BF16 deterministic: true } ";
    const GradientResult kept = gradients("", bf16, request);
    for (const char* names : {"", "NORMS", "RESIDUAL", "NORMS, RESIDUAL", "DISPATCH", "GROUPED_MLP"}) {
      expect_same("", bf16 + selective(names), request, kept);
    }
    expect_same("", bf16 + "training { recompute: FULL } ", request, kept);
  }
}

// Less is kept the more is made again, what is made again is there once, and the sum is what it says.
TEST_F(RecomputeEquivalence, KeepsLess) {
  const auto planned = [&](const std::string& more) { return gradients("", more, on({1, 2, 2})).planned; };
  const auto none = planned(""), some = planned(selective("")), full = planned("training { recompute: FULL } ");
  EXPECT_EQ(full.at("saved activations"), 0u);
  EXPECT_LT(2 * some.at("saved activations"), none.at("saved activations"));
  EXPECT_GT(some.at("saved activations"), 0u);
  EXPECT_LT(none.at("activations of one block"), some.at("activations of one block"));
  EXPECT_LT(some.at("activations of one block"), full.at("activations of one block"));
  // 2 microbatches of 2 rows of 32 tokens one after the other; 4 layers' residuals are kept, of 24 values each.
  const std::uint64_t residuals = 4 * (2 * 32 * 24 * 4);
  EXPECT_EQ(planned(selective("NORMS, PROJECTIONS, ATTENTION, ROUTER, DISPATCH, GROUPED_MLP")).at("saved activations"),
            residuals);
}

}  // namespace
}  // namespace ananke
