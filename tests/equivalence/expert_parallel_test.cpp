// Experts shared out over ranks that exchange tokens: gradients, losses and checkpoints as on one rank.
#include <gtest/gtest.h>

#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"
#include "tests/test_gpus.h"

namespace ananke {
namespace {

// replicate, shard (expert_shard x expert), expert.
const MeshShape meshes[] = {{1, 2, 2}, {1, 4, 4}, {1, 4, 2}, {2, 2, 2}, {2, 4, 2}, {1, 8, 4}, {1, 8, 8}};

void expect_equal(const GradientResult& got, const GradientResult& wanted, double bound) {
  EXPECT_NEAR(got.loss, wanted.loss, bound * wanted.loss);
  ASSERT_EQ(got.gradients.size(), wanted.gradients.size());
  for (const auto& [name, gradient] : wanted.gradients) {
    EXPECT_LE(relative_difference(got.gradients.at(name), gradient), bound) << name;
  }
}

RunRequest with_ep(const MeshShape& mesh, int microbatches = 1, int chunks = 2) {
  RunRequest request{mesh, microbatches};
  request.expert_chunks = chunks;
  return request;
}

class ExpertParallel : public testing::Test {
 protected:
  TemporaryFolder folder_;
  GradientResult one_ = first_gradients(small_job(folder_.path()), {{1, 1}});
};

TEST_F(ExpertParallel, GradientsAreThoseOfOneRankOnEveryMesh) {
  for (const MeshShape& mesh : meshes) {
    for (const int chunks : {1, 3}) {
      SCOPED_TRACE(to_string(mesh) + ", chunks " + std::to_string(chunks));
      expect_equal(first_gradients(small_job(folder_.path()), with_ep(mesh, 1, chunks)), one_, 1e-5);
    }
  }
}

TEST_F(ExpertParallel, GradientsAreThoseOfOneRankWithUnevenRowsBothLoopOrdersAndRecompute) {
  for (const char* order : {"", "training { microbatches_per_gather: 0 }"}) {
    for (const char* recompute : {"", " training { recompute: FULL }"}) {
      const Job job = small_job(folder_.path(), std::string(order) + recompute);
      for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{2, 2}, MeshShape{1, 2, 2},
                                    MeshShape{1, 4, 4}, MeshShape{1, 4, 2}, MeshShape{2, 2, 2}, MeshShape{2, 4, 2}}) {
        SCOPED_TRACE(to_string(mesh) + " " + order + recompute);
        RunRequest request = with_ep(mesh, 8 / mesh.ranks());
        if (mesh.expert == 1) request.expert_chunks = 0;
        request.uneven = true;
        expect_equal(first_gradients(job, request), one_, 1e-5);
      }
    }
  }
}

TEST_F(ExpertParallel, RecomputeIsTheSameBits) {
  const Job job = small_job(folder_.path(), "training { recompute: FULL }");
  for (const MeshShape& mesh : {MeshShape{1, 4, 2}, MeshShape{1, 4, 4}}) {
    for (const int chunks : {1, 2, 5}) {
      const GradientResult kept = first_gradients(small_job(folder_.path()), with_ep(mesh, 2, chunks));
      const GradientResult again = first_gradients(job, with_ep(mesh, 2, chunks));
      EXPECT_EQ(kept.loss, again.loss);
      EXPECT_EQ(kept.gradients, again.gradients);
    }
  }
}

// With recompute memory is bounded by a chunk; without it all chunks of a layer stay.
TEST_F(ExpertParallel, MoreChunksNeedLessMemoryWithRecompute) {
  const Job job = small_job(folder_.path(), "training { recompute: FULL }");
  const auto whole = first_gradients(job, with_ep({1, 4, 2}, 2, 1)).planned;
  const auto cut = first_gradients(job, with_ep({1, 4, 2}, 2, 8)).planned;
  for (const char* purpose :
       {"activations of one block", "tokens on their way to experts", "tokens on their way back"}) {
    EXPECT_LT(cut.at(purpose), whole.at(purpose)) << purpose;
  }
  // [capacity, H] of rows: 2 ranks x 32 tokens x 2 choices x 96 bytes, of which an eighth, twice, remains.
  EXPECT_LE(cut.at("activations of one block") + 2 * 32 * 2 * 96 / 2, whole.at("activations of one block"));
}

// R1: what replicas hold of one parameter, the router's among them, must be equal to the last bit.
TEST_F(ExpertParallel, GradientsAreBitEqualOnAllReplicas) {
  for (const MeshShape& mesh : {MeshShape{2, 2, 2}, MeshShape{2, 4, 2}, MeshShape{4, 2, 2}}) {
    RunRequest request = with_ep(mesh);
    request.uneven = true;
    const GradientResult result = first_gradients(small_job(folder_.path()), request);
    bool router_seen = false;
    for (const auto& [name, replicas] : result.by_replica) {
      ASSERT_EQ(replicas.size(), static_cast<std::size_t>(mesh.replicate)) << name;
      for (const std::vector<float>& replica : replicas) EXPECT_EQ(replica, replicas[0]) << name;
      router_seen = router_seen || name.find("mlp.gate.weight") != std::string::npos;
    }
    EXPECT_TRUE(router_seen);
  }
}

// R1 again: one MoE layer, two ranks with different tokens, expert axis 2.
TEST_F(ExpertParallel, TheRouterLearnsFromTheTokensOfAllRanks) {
  RunRequest request = with_ep({1, 2, 2});
  request.uneven = true;
  const GradientResult two = first_gradients(small_job(folder_.path()), request);
  const std::string gate = "model.layers.1.mlp.gate.weight";
  EXPECT_LE(relative_difference(two.gradients.at(gate), one_.gradients.at(gate)), 1e-5);
}

void expect_close(const RunResult& got, const RunResult& wanted, double bound) {
  ASSERT_EQ(got.steps.size(), wanted.steps.size());
  for (std::size_t i = 0; i < got.steps.size(); ++i) {
    EXPECT_NEAR(got.steps[i].loss(), wanted.steps[i].loss(), bound * wanted.steps[i].loss()) << "step " << i + 1;
  }
}

TEST(ExpertParallelTraining, FollowsTheOneRankRunAndEvaluatesAsIt) {
  const TemporaryFolder folder;
  const RunResult one = train(small_job(folder / "one"), {{1, 1}});
  for (const MeshShape& mesh : meshes) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult run = train(small_job(folder / to_string(mesh)), with_ep(mesh));
    expect_close(run, one, 1e-5);
    ASSERT_EQ(run.evaluations.size(), one.evaluations.size());
    EXPECT_NEAR(run.evaluations.back().loss(), one.evaluations.back().loss(), 1e-4 * one.evaluations.back().loss());
    EXPECT_EQ(run.evaluations.back().valid_tokens(), one.evaluations.back().valid_tokens());
  }
}

TEST(ExpertParallelTraining, OfTwoRunsAndOfAResumedOneIsTheSameBits) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{1, 4, 2}, MeshShape{2, 2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult straight = train(small_job(folder / ("a" + to_string(mesh))), with_ep(mesh, 2));
    const RunResult second = train(small_job(folder / ("b" + to_string(mesh))), with_ep(mesh, 2));
    EXPECT_EQ(second.weights, straight.weights);
    const Job job = small_job(folder / ("c" + to_string(mesh)));
    RunRequest part = with_ep(mesh, 2);
    part.stop_at_step = 4;
    EXPECT_EQ(train(job, part).steps.back().step(), 4U);
    part.resume = true;
    part.stop_at_step = 0;
    const RunResult resumed = train(job, part);
    EXPECT_EQ(resumed.steps.front().step(), 5U);
    EXPECT_EQ(resumed.weights, straight.weights);
    for (std::size_t i = 4; i < straight.steps.size(); ++i) {
      EXPECT_EQ(resumed.steps[i - 4].loss(), straight.steps[i].loss()) << "step " << i + 1;
    }
  }
}

TEST(ExpertParallelTraining, ReadsNoMoreOfTheDeviceAndSaysWhatTravelled) {
  const TemporaryFolder folder;
  const Job job = small_job(folder.path(), "evaluation { every_steps: 0 }");
  const RunResult run = train(job, with_ep({1, 4, 2}, 2));
  for (std::size_t i = 1; i < run.steps.size(); ++i) {
    // One MoE layer, two microbatches, two chunks each.
    EXPECT_EQ(run.steps[i].device_reads(), 1U + 2U * 2U * reads_of_experts());
    std::map<std::string, std::uint64_t> moved;
    for (const TrafficRecord& line : run.steps[i].traffic()) {
      if (line.axis() != "expert") continue;
      EXPECT_EQ(line.resource(), "nvlink");
      EXPECT_EQ(line.unit(), "experts");
      moved[line.direction()] += line.bytes();
    }
    // f32 [24] are 96 bytes; a token carries 2 weights and 2 indices, a gradient 2 weights: 16 bytes each.
    // Outwards a rank receives the peer's copies, on the way back its own.
    ASSERT_GT(moved["dispatch"], 0U);
    ASSERT_GT(moved["combine"], 0U);
    EXPECT_EQ(moved["dispatch"] / 128, moved["combine_backward"] / 96);
    EXPECT_EQ(moved["dispatch_backward"] / 112, moved["combine"] / 96);
    const std::uint64_t tokens = 2 * 32;  // of this rank and step; the peer has as many, with one copy each at most
    EXPECT_LE(moved["dispatch"], tokens * 128);
  }
}

TEST(ExpertParallelTraining, ACheckpointIsTheSameBitsOnEveryMeshWithAndWithoutAnExpertAxis) {
  const char* rows = "training { steps: 3 rows_per_step: 24 } evaluation { every_steps: 0 }";
  for (const MeshShape& writer : {MeshShape{1, 4, 2}, MeshShape{2, 2, 2}, MeshShape{1, 4}}) {
    const TemporaryFolder folder;
    const Job job = small_job(folder.path(), rows);
    const RunResult saved = train(job, writer.expert > 1 ? with_ep(writer) : RunRequest{writer});
    for (const MeshShape& reader : {MeshShape{1, 1}, MeshShape{1, 3, 3}, MeshShape{1, 4, 4}, MeshShape{2, 2, 2},
                                    MeshShape{1, 8, 2}, MeshShape{2, 4, 4}, MeshShape{1, 8, 8}, MeshShape{4, 2}}) {
      SCOPED_TRACE(to_string(writer) + " to " + to_string(reader));
      RunRequest request = reader.expert > 1 ? with_ep(reader) : RunRequest{reader};
      request.resume = true;
      const RunResult loaded = start_only(job, request);
      EXPECT_EQ(loaded.weights, saved.weights);
      EXPECT_EQ(loaded.states, saved.states);
    }
  }
}

}  // namespace
}  // namespace ananke
