// Training with muon: follows the one-rank run, resumes with the same bits, and on another mesh.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"
#include "tests/test_gpus.h"

namespace ananke {
namespace {

Job muon_job(const std::filesystem::path& run_dir, const std::string& changes = "") {
  Job job = small_job(run_dir, changes);
  job.clear_optimizer();
  for (const auto& [match, use] : {std::pair{"experts|_proj", "muon"}, {".*", "adamw"}}) {
    OptimizerRule* rule = job.add_optimizer();
    rule->set_match(match);
    rule->set_use(use);
  }
  add_plugin(job, "muon", "lr: 0.01");
  return job;
}

TEST(Muon, FollowsTheOneRankRun) {
  const TemporaryFolder folder;
  const RunResult one = train(muon_job(folder / "one"), {{1, 1}});
  EXPECT_LT(one.steps.back().loss(), 0.99 * one.steps.front().loss());
  int run = 0;
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{2, 1}, MeshShape{2, 2}, MeshShape{1, 8}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult got = train(muon_job(folder / std::to_string(run++)), {mesh});
    ASSERT_EQ(got.steps.size(), one.steps.size());
    for (std::size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_NEAR(got.steps[i].loss(), one.steps[i].loss(), 1e-5 * one.steps[i].loss()) << "step " << i + 1;
    }
  }
}

TEST(Muon, ResumesWithTheSameBits) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 4}, MeshShape{2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult straight = train(muon_job(folder / ("straight" + to_string(mesh))), {mesh});
    const Job job = muon_job(folder / ("resumed" + to_string(mesh)));
    EXPECT_EQ(train(job, {mesh, 1, false, 4}).steps.back().step(), 4u);
    const RunResult resumed = train(job, {mesh, 1, true});
    EXPECT_EQ(resumed.weights, straight.weights);
    EXPECT_EQ(resumed.states, straight.states);
  }
}

TEST(Muon, SharedByReplicasTrainsToTheSameBits) {
  const TemporaryFolder folder;
  const RunResult apart = train(muon_job(folder / "apart"), {{2, 2}});
  const RunResult shared =
      train(muon_job(folder / "shared", "matrix_updates { share_replicas: true bucket: \"8 KiB\" }"), {{2, 2}});
  EXPECT_EQ(shared.weights, apart.weights);
  EXPECT_EQ(shared.states, apart.states);
}

TEST(Muon, StateIsTheSameBitsOnAnotherMesh) {
  const TemporaryFolder folder;
  const Job job = muon_job(folder.path(), "training { steps: 3 rows_per_step: 24 } evaluation { every_steps: 0 }");
  const RunResult saved = train(job, {{1, 4}});
  EXPECT_EQ(saved.states.count("model.layers.1.mlp.experts.3.up_proj.weight momentum_buffer"), 1u);
  EXPECT_EQ(saved.states.count("model.norm.weight exp_avg_sq"), 1u);
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 3}, MeshShape{2, 2}, MeshShape{1, 8}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult loaded = start_only(job, {mesh, 1, true});
    EXPECT_EQ(loaded.weights, saved.weights);
    EXPECT_EQ(loaded.states, saved.states);
  }
}

TEST(Muon, GoesOnOnAnotherMesh) {
  const TemporaryFolder folder;
  const std::string more = "training { steps: 6 rows_per_step: 24 } evaluation { every_steps: 0 }";
  const RunResult straight = train(muon_job(folder / "straight", more), {{1, 4}});
  const Job job = muon_job(folder / "moved", more);
  train(job, {{1, 4}, 1, false, 3});
  const RunResult moved = train(job, {{1, 3}, 1, true});
  ASSERT_EQ(moved.steps.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(moved.steps[i].loss(), straight.steps[i + 3].loss(), 1e-5 * straight.steps[i + 3].loss());
  }
}

TEST(Muon, SkipsANonFiniteStepWithoutChangingWeights) {
  const TemporaryFolder folder;
  const Job job =
      muon_job(folder.path(), "model { initializer_range: 1e30 } training { steps: 2 on_non_finite: SKIP }");
  const RunResult run = train(job, {{1, 2}});
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_TRUE(run.steps[0].skipped());
  for (const auto& [name, values] : run.states) EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f)) << name;
}

TEST(Muon, ReadsTheDeviceOncePerStep) {
  const TemporaryFolder folder;
  const RunResult run = train(muon_job(folder.path(), "evaluation { every_steps: 0 }"), {{1, 2}});
  for (std::size_t i = 1; i < run.steps.size(); ++i) EXPECT_EQ(run.steps[i].device_reads(), 1u + reads_of_experts());
}

// Each rank is sent what its matrices lack, and then the updates of what it stores of others.
TEST(Muon, ReportsWhatTravelled) {
  const TemporaryFolder folder;
  const auto bytes_of = [&](const Job& job, const MeshShape& mesh, const std::string& axis) {
    const RunResult run = train(job, {mesh});
    std::vector<std::uint64_t> bytes;
    for (const StepRecord& step : run.steps) {
      bytes.push_back(0);
      for (const TrafficRecord& line : step.traffic()) {
        if (line.direction() == "redistribute" && line.axis() == axis) bytes.back() += line.bytes();
      }
    }
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), bytes[0]), std::ssize(bytes));
    return bytes[0];
  };
  const Job job = muon_job(folder.path(), "training { steps: 3 }");
  EXPECT_EQ(bytes_of(job, {1, 1}, "shard"), 0u);
  EXPECT_GT(bytes_of(job, {1, 2}, "shard"), 0u);
  EXPECT_EQ(bytes_of(job, {2, 2}, "replicate"), 0u);
  const Job shared = muon_job(folder.path(), "training { steps: 3 } matrix_updates { share_replicas: true }");
  EXPECT_GT(bytes_of(shared, {2, 2}, "replicate"), 0u);
}

TEST(Muon, OfEverythingIsRefusedBeforeAnythingStarts) {
  const TemporaryFolder folder;
  Job job = muon_job(folder.path());
  job.clear_optimizer();
  job.add_optimizer()->set_use("muon");
  try {
    train(job, {{1, 2}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config) << error.what();
    EXPECT_NE(std::string(error.what()).find("model.embed_tokens.weight"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ananke
