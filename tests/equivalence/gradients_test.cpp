// Gradients from equal weights do not depend on the mesh, the loop order, recompute or how microbatches are cut.
#include <gtest/gtest.h>

#include "tests/equivalence/rank_runs.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

void expect_equal(const GradientResult& got, const GradientResult& wanted, double bound) {
  EXPECT_NEAR(got.loss, wanted.loss, bound * wanted.loss);
  ASSERT_EQ(got.gradients.size(), wanted.gradients.size());
  for (const auto& [name, gradient] : wanted.gradients) {
    EXPECT_LE(relative_difference(got.gradients.at(name), gradient), bound) << name;
  }
}

struct MeshCase {
  MeshShape mesh;
  int microbatches;
};

class Gradients : public testing::Test {
 protected:
  Gradients() : one_(first_gradients(small_job(folder_.path()), {{1, 1}})) {}
  TemporaryFolder folder_;
  GradientResult one_;
};

TEST_F(Gradients, NeedAPluginThatExchangesTokensForAnExpertAxis) {
  EXPECT_ERROR(first_gradients(small_job(folder_.path()), {{1, 2, 2}}), ErrorKind::config, "mesh.expert is 2",
               "plugin of role experts that exchanges tokens", "plugins { use: \"ep\" }");
}

TEST_F(Gradients, AreTheSameOnEveryMesh) {
  for (const MeshCase& c :
       {MeshCase{{1, 2}, 1}, MeshCase{{1, 4}, 1}, MeshCase{{2, 1}, 1}, MeshCase{{4, 1}, 1}, MeshCase{{2, 2}, 1},
        MeshCase{{1, 8}, 1}, MeshCase{{1, 2}, 2}, MeshCase{{1, 1}, 4}, MeshCase{{2, 2}, 2}}) {
    SCOPED_TRACE(to_string(c.mesh) + ", microbatches " + std::to_string(c.microbatches));
    expect_equal(first_gradients(small_job(folder_.path()), {c.mesh, c.microbatches}), one_, 1e-5);
  }
}

TEST_F(Gradients, AreTheSameInLayerOuterOrder) {
  const Job job = small_job(folder_.path(), "training { microbatches_per_gather: 0 }");
  expect_equal(first_gradients(job, {{1, 1}, 4}), one_, 1e-5);
  expect_equal(first_gradients(job, {{1, 2}, 4}), one_, 1e-5);
  expect_equal(first_gradients(job, {{2, 2}, 2}), one_, 1e-5);
}

TEST_F(Gradients, OfRecomputeAreTheSameBits) {
  const Job job = small_job(folder_.path(), "training { recompute: FULL }");
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 4}}) {
    const GradientResult kept = first_gradients(small_job(folder_.path()), {mesh, 2});
    const GradientResult recomputed = first_gradients(job, {mesh, 2});
    EXPECT_EQ(kept.loss, recomputed.loss);
    EXPECT_EQ(kept.gradients, recomputed.gradients);
  }
}

TEST_F(Gradients, OfATiedHeadAreTheSameOnEveryMesh) {
  const Job job = small_job(folder_.path(), "model { tie_word_embeddings: true }");
  const GradientResult one = first_gradients(job, {{1, 1}});
  expect_equal(first_gradients(job, {{1, 4}}), one, 1e-5);
  expect_equal(first_gradients(job, {{2, 2}, 2}), one, 1e-5);
}

// R1: what replicas hold of one parameter, the router's among them, must be equal to the last bit.
TEST_F(Gradients, AreBitEqualOnAllReplicas) {
  for (const MeshShape& mesh : {MeshShape{2, 1}, MeshShape{4, 1}, MeshShape{2, 2}}) {
    const GradientResult result = first_gradients(small_job(folder_.path()), {mesh, 2});
    bool router_seen = false;
    for (const auto& [name, replicas] : result.by_replica) {
      ASSERT_EQ(replicas.size(), static_cast<std::size_t>(mesh.replicate)) << name;
      for (const std::vector<float>& replica : replicas) EXPECT_EQ(replica, replicas[0]) << name;
      router_seen = router_seen || name.find("mlp.gate.weight") != std::string::npos;
    }
    EXPECT_TRUE(router_seen);
  }
}

}  // namespace
}  // namespace ananke
