// Any number of microbatches a gather: gradients, losses and checkpoints as with one; memory and traffic as planned.
#include <gtest/gtest.h>

#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

constexpr int divisors_of_four[] = {1, 2, 4};

std::string per_gather(int microbatches) {
  return "training { microbatches_per_gather: " + std::to_string(microbatches) + " } ";
}

RunRequest on(const MeshShape& mesh, int microbatches) {
  RunRequest request{mesh, microbatches};
  request.expert_chunks = mesh.expert > 1 ? 2 : 0;
  return request;
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

// A unit that no other rank holds a part of is summed over microbatches in their order, however they are grouped.
TEST(MicrobatchesPerGather, HaveTheSameBitsWhereUnitsAreNotCut) {
  const TemporaryFolder folder;
  const auto gradients = [&](const MeshShape& mesh, int microbatches, int group) {
    return first_gradients(small_job(folder.path(), per_gather(group)), on(mesh, microbatches));
  };
  const GradientResult one = gradients({1, 1}, 8, 1);
  for (const int group : {2, 4, 8}) {
    const GradientResult got = gradients({1, 1}, 8, group);
    EXPECT_EQ(got.loss, one.loss);
    EXPECT_EQ(got.gradients, one.gradients) << group;
  }
  for (const MeshShape& mesh : {MeshShape{2, 1}, MeshShape{1, 2, 2}}) {
    const GradientResult apart = gradients(mesh, 4, 1);
    for (const int group : {2, 4}) {
      for (const auto& [name, gradient] : gradients(mesh, 4, group).gradients) {
        const bool cut = mesh.shard > 1 && name.find("experts") == std::string::npos;
        EXPECT_EQ(cut || gradient == apart.gradients.at(name), true)
            << name << ", " << to_string(mesh) << ", " << group;
      }
    }
  }
}

TEST(MicrobatchesPerGather, HaveTheGradientsOfOneRankOnEveryMesh) {
  const TemporaryFolder folder;
  const std::string rows = "training { rows_per_step: 16 } ";
  for (const char* more : {"", "model { tie_word_embeddings: true }", "training { recompute: FULL }"}) {
    const GradientResult one = first_gradients(small_job(folder.path(), rows + more), {{1, 1}});
    for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{2, 2}, MeshShape{1, 2, 2},
                                  MeshShape{1, 4, 2}, MeshShape{2, 2, 2}}) {
      for (const int group : divisors_of_four) {
        for (const bool uneven : {false, true}) {
          SCOPED_TRACE(to_string(mesh) + ", " + std::to_string(group) + (uneven ? " uneven " : " ") + more);
          RunRequest request = on(mesh, 4);
          request.uneven = uneven;
          expect_equal(first_gradients(small_job(folder.path(), rows + per_gather(group) + more), request), one, 1e-5);
        }
      }
    }
  }
}

// The losses of routers are of a microbatch over all ranks: another number of microbatches would be other losses.
TEST(MicrobatchesPerGather, HaveTheSameLossesOfRouters) {
  const TemporaryFolder folder;
  const std::string model =
      "model { num_hidden_layers: 4 output_router_logits: true router_aux_loss_coef: 0.2 router_z_loss_coef: 0.01 } ";
  const GradientResult one = first_gradients(small_job(folder.path(), model + per_gather(1)), on({1, 1}, 4));
  EXPECT_GT(one.auxiliary_loss, 0);
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 2}, MeshShape{1, 2, 2}}) {
    for (const int group : {2, 4}) {
      SCOPED_TRACE(to_string(mesh) + ", " + std::to_string(group));
      expect_equal(first_gradients(small_job(folder.path(), model + per_gather(group)), on(mesh, 4)), one, 1e-5);
    }
  }
}

// What a group has in flight is planned for, and no more.
TEST(MicrobatchesPerGather, ArePlannedFor) {
  const TemporaryFolder folder;
  std::map<int, std::map<std::string, std::uint64_t>> planned;
  for (const int group : divisors_of_four) {
    planned[group] = first_gradients(small_job(folder.path(), per_gather(group)), on({1, 2}, 4)).planned;
  }
  for (const int group : {2, 4}) {
    EXPECT_EQ(planned[group].at("activation gradients"), group * planned[1].at("activation gradients"));
    EXPECT_EQ(planned[group].at("block inputs"), group * planned[1].at("block inputs"));
    EXPECT_EQ(planned[group].at("gather slots"), planned[1].at("gather slots"));
    EXPECT_EQ(planned[group].at("workspace"), planned[1].at("workspace"));
  }
  const std::uint64_t of_layers =
      planned[2].at("saved activations") - planned[1].at("saved activations");  // the head's own are there once
  EXPECT_EQ(planned[4].at("saved activations") - planned[2].at("saved activations"), 2 * of_layers);
}

// With room for one block every group gathers the model once and its layers once more, and reduces every unit once.
TEST(MicrobatchesPerGather, DivideTheTraffic) {
  const TemporaryFolder folder;
  std::map<int, std::uint64_t> gathered, reduced;
  for (const int group : divisors_of_four) {
    Job job = small_job(
        folder / std::to_string(group),
        "model { num_hidden_layers: 4 } training { steps: 2 } evaluation { every_steps: 0 } " + per_gather(group));
    job.mutable_evaluation()->clear_held_out();
    add_plugin(job, "fsdp", "prefetch_blocks: 0 reduce_blocks: 0");
    const RunResult run = train(job, on({1, 2}, 4));
    ASSERT_EQ(run.steps.size(), 2u);
    EXPECT_EQ(run.steps[0].gather_bytes(), run.steps[1].gather_bytes());
    gathered[group] = run.steps[1].gather_bytes();
    reduced[group] = run.steps[1].reduce_bytes();
  }
  EXPECT_GT(gathered[4], 0u);
  for (const int group : {1, 2}) {
    EXPECT_EQ(gathered[group], gathered[4] * (4 / group));
    EXPECT_EQ(reduced[group], reduced[4] * (4 / group));
  }
}

TEST(MicrobatchesPerGather, TrainAndResumeWithTheSameBits) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const std::string name = to_string(mesh);
    const RunResult apart = train(small_job(folder / (name + " 1"), per_gather(1)), on(mesh, 4));
    const RunResult straight = train(small_job(folder / (name + " 2"), per_gather(2)), on(mesh, 4));
    ASSERT_EQ(straight.steps.size(), apart.steps.size());
    for (std::size_t i = 0; i < apart.steps.size(); ++i) {
      EXPECT_NEAR(straight.steps[i].loss(), apart.steps[i].loss(), 1e-5 * apart.steps[i].loss()) << "step " << i + 1;
    }
    const Job job = small_job(folder / (name + " resumed"), per_gather(2));
    RunRequest part = on(mesh, 4);
    part.stop_at_step = 4;
    EXPECT_EQ(train(job, part).steps.back().step(), 4u);
    part.stop_at_step = 0;
    part.resume = true;
    const RunResult resumed = train(job, part);
    EXPECT_EQ(resumed.weights, straight.weights);
    EXPECT_EQ(resumed.states, straight.states);
  }
}

}  // namespace
}  // namespace ananke
