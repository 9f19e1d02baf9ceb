// Jobs on tests/sharing_backend are the same jobs: what stands between is its collectives alone.
#include <gtest/gtest.h>

#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

TEST(SharedDevice, GivesTheGradientsOfRanksWithTheirOwn) {
  const TemporaryFolder folder;
  const Job job = small_job(folder.path(), "training { steps: 1 }");
  for (const MeshShape& mesh : {MeshShape{1, 4}, MeshShape{2, 2}, MeshShape{2, 4, 2}}) {
    RunRequest request{.mesh = mesh, .expert_chunks = mesh.expert > 1 ? 2 : 0, .uneven = true};
    const GradientResult own = first_gradients(job, request);
    request.sharing = true;
    const GradientResult shared = first_gradients(job, request);
    EXPECT_EQ(shared.valid_targets, own.valid_targets);
    EXPECT_NEAR(shared.loss, own.loss, 1e-6);
    for (const auto& [name, gradient] : own.gradients) {
      EXPECT_LT(relative_difference(shared.gradients.at(name), gradient), 1e-5) << name << " on " << mesh.ranks();
    }
    for (const auto& [name, replicas] : shared.by_replica) {
      for (const auto& replica : replicas) EXPECT_EQ(replica, replicas[0]) << name;
    }
  }
}

TEST(SharedDevice, TrainsWithWires) {
  const TemporaryFolder folder;
  Job job = small_job(folder.path(), "training { steps: 4 } evaluation { every_steps: 2 }");
  add_plugin(job, "fsdp", "gather_dense: BF16 gather_experts: BF16 reduce_dense: BF16_ALL_TO_ALL");
  RunRequest request{.mesh = {2, 2, 2}, .expert_chunks = 1};
  const RunResult own = train(job, request);
  request.sharing = true;
  job.set_run_dir((folder.path() / "shared").string());
  const RunResult shared = train(job, request);
  ASSERT_EQ(shared.steps.size(), own.steps.size());
  for (std::size_t i = 0; i < own.steps.size(); ++i) EXPECT_NEAR(shared.steps[i].loss(), own.steps[i].loss(), 1e-3);
}

}  // namespace
}  // namespace ananke
