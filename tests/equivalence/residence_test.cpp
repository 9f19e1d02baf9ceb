// State in host memory changes no bit: gradients, weights and optimizer states, on any mesh and with any optimizer.
#include <gtest/gtest.h>

#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"
#include "tests/test_gpus.h"

namespace ananke {
namespace {

const char* const everything = "residence: HOST";
const char* const half = "residence: HOST host_fraction: 0.5";
const std::string layers = "model { num_hidden_layers: 4 } ";
// Buffers that hold a part of a matrix only.
const std::string small_bucket = "host_updates { bucket: \"3 KiB\" } matrix_updates { bucket: \"8 KiB\" } ";

std::vector<MeshShape> meshes() { return {{1, 1}, {1, 2}, {1, 2, 2}, {2, 2}}; }

RunRequest on(const MeshShape& mesh, int microbatches = 2) {
  RunRequest request{mesh, microbatches};
  request.expert_chunks = mesh.expert > 1 ? 2 : 0;
  return request;
}

class HostResidence : public testing::Test {
 protected:
  Job job(const std::string& changes, const std::string& fsdp, bool muon = false) {
    Job job = small_job(folder_ / std::to_string(runs_++), layers + changes);
    if (muon) {
      job.clear_optimizer();
      for (const auto& [match, use] : {std::pair{"experts|_proj", "muon"}, {".*", "adamw"}}) {
        OptimizerRule* rule = job.add_optimizer();
        rule->set_match(match);
        rule->set_use(use);
      }
      add_plugin(job, "muon", "lr: 0.01");
    }
    if (!fsdp.empty()) add_plugin(job, "fsdp", fsdp);
    return job;
  }
  TemporaryFolder folder_;
  int runs_ = 0;
};

TEST_F(HostResidence, HasGradientsOfTheSameBits) {
  for (const MeshShape& mesh : meshes()) {
    for (const char* more : {"", "training { microbatches_per_gather: 0 } ", "training { recompute: FULL } "}) {
      for (const char* wires : {"", " gather_dense: BF16 gather_experts: FP8_E4M3 reduce_dense: BF16_ALL_TO_ALL"}) {
        const GradientResult here = first_gradients(job(more, wires), on(mesh));
        for (const char* there : {everything, half}) {
          SCOPED_TRACE(to_string(mesh) + " " + more + there + wires);
          const GradientResult away = first_gradients(job(more, std::string(there) + wires), on(mesh));
          EXPECT_EQ(away.loss, here.loss);
          EXPECT_EQ(away.gradients, here.gradients);
          EXPECT_EQ(away.by_replica, here.by_replica);
        }
      }
    }
  }
}

void expect_same(const RunResult& got, const RunResult& wanted) {
  EXPECT_EQ(got.weights, wanted.weights);
  EXPECT_EQ(got.states, wanted.states);
  ASSERT_EQ(got.steps.size(), wanted.steps.size());
  for (std::size_t i = 0; i < got.steps.size(); ++i) {
    EXPECT_EQ(got.steps[i].loss(), wanted.steps[i].loss()) << "step " << i + 1;
    EXPECT_EQ(got.steps[i].gradient_norm(), wanted.steps[i].gradient_norm()) << "step " << i + 1;
  }
}

TEST_F(HostResidence, TrainsToTheSameBits) {
  const std::string steps = "training { steps: 4 } ";
  for (const bool muon : {false, true}) {
    for (const MeshShape& mesh : meshes()) {
      const RunResult here = train(job(steps, "", muon), on(mesh));
      for (const char* there : {everything, half}) {
        for (const std::string& bucket : {std::string(), small_bucket}) {
          SCOPED_TRACE(to_string(mesh) + (muon ? ", Muon, " : ", AdamW, ") + there + " " + bucket);
          expect_same(train(job(steps + bucket, there, muon), on(mesh)), here);
        }
      }
    }
  }
}

TEST_F(HostResidence, TrainsToTheSameBitsWithRecomputeAndInputsOnTheHost) {
  const std::string more = "training { steps: 4 recompute: FULL } ";
  for (const bool muon : {false, true}) {
    const auto with_offload = [&](Job job) {
      add_plugin(job, "activation_offload", "fraction: 1");
      return job;
    };
    expect_same(train(with_offload(job(more + small_bucket, everything, muon)), on({1, 2}, 4)),
                train(job(more, "", muon), on({1, 2}, 4)));
  }
}

TEST_F(HostResidence, TrainsToTheSameBitsWhereReplicasShareTheMatrices) {
  const std::string more = "training { steps: 4 } matrix_updates { share_replicas: true bucket: \"4 KiB\" } ";
  expect_same(train(job(more + "host_updates { bucket: \"1 KiB\" } ", everything, true), on({2, 2})),
              train(job(more, "", true), on({2, 2})));
}

TEST_F(HostResidence, TrainsToTheSameBitsInBf16) {
  RunRequest request = on({1, 2});
  request.rounding = test_backend(2) == std::string("backend_host");
  const std::string more = "training { steps: 4 compute: BF16 } ";
  for (const bool muon : {false, true}) {
    expect_same(train(job(more + small_bucket, everything, muon), request), train(job(more, "", muon), request));
    RunRequest alone = request;
    alone.mesh = {1, 1};
    expect_same(train(job(more + small_bucket, everything, muon), alone), train(job(more, "", muon), alone));
  }
}

// A step that is not finite changes nothing there either.
TEST_F(HostResidence, SkipsANonFiniteStepWithoutChangingState) {
  const std::string more = "model { initializer_range: 1e30 } training { steps: 2 on_non_finite: SKIP } ";
  const RunResult run = train(job(more, everything, true), on({1, 2}));
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_TRUE(run.steps[0].skipped());
  for (const auto& [name, values] : run.states) EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f)) << name;
}

TEST_F(HostResidence, MayChangeFromOneCheckpointToTheNextRun) {
  const std::string more = "training { steps: 6 } ";
  for (const bool muon : {false, true}) {
    const RunResult straight = train(job(more, "", muon), on({1, 2}));
    for (const auto& [before, after] : {std::pair{"", everything}, {everything, ""}, {half, everything}}) {
      SCOPED_TRACE(std::string(muon ? "Muon, " : "AdamW, ") + before + " -> " + after);
      const Job first = job(more, before, muon);
      Job second = job(more, after, muon);
      second.set_run_dir(first.run_dir());
      RunRequest stopped = on({1, 2});
      stopped.stop_at_step = 3;
      EXPECT_EQ(train(first, stopped).steps.back().step(), 3u);
      RunRequest resumed = on({1, 2});
      resumed.resume = true;
      const RunResult run = train(second, resumed);
      EXPECT_EQ(run.weights, straight.weights);
      EXPECT_EQ(run.states, straight.states);
    }
  }
}

std::uint64_t moved(const StepRecord& step, const std::string& resource, const std::string& direction) {
  std::uint64_t bytes = 0;
  for (const TrafficRecord& line : step.traffic()) {
    if (line.resource() == resource && line.direction() == direction) bytes += line.bytes();
  }
  return bytes;
}

// Of one rank, which owns every element: the update takes in weight, gradient and states, and gives back all but the
// gradient. Nothing more is read by the host than without.
TEST_F(HostResidence, SaysWhatTravelled) {
  for (const bool muon : {false, true}) {
    const RunResult run = train(job("training { steps: 3 } ", everything, muon), on({1, 1}));
    const RunResult without = train(job("training { steps: 3 } ", "", muon), on({1, 1}));
    std::uint64_t weights = 0, states = 0;
    for (const auto& [name, values] : run.weights) weights += values.size() * sizeof(float);
    for (const auto& [name, values] : run.states) states += values.size() * sizeof(float);
    for (std::size_t i = 1; i < run.steps.size(); ++i) {
      EXPECT_EQ(moved(run.steps[i], "host_to_device", "update"), 2 * weights + states);
      EXPECT_EQ(moved(run.steps[i], "device_to_host", "update"), weights + states);
      EXPECT_GE(moved(run.steps[i], "host_to_device", "weights"), weights);
      EXPECT_GE(moved(run.steps[i], "device_to_host", "gradients"), 2 * weights) << "of two microbatches";
      EXPECT_EQ(run.steps[i].device_reads(), without.steps[i].device_reads());
    }
  }
  for (const StepRecord& step : train(job("training { steps: 2 } ", ""), on({1, 2})).steps) {
    EXPECT_EQ(moved(step, "host_to_device", "weights"), 0u);
    EXPECT_EQ(moved(step, "device_to_host", "update"), 0u);
  }
}

std::uint64_t on_device(const MemoryReport& report, const std::string& purpose) {
  for (const MemoryLine& line : report.line()) {
    if (line.purpose() == purpose) return line.measured();
  }
  return 0;
}

TEST_F(HostResidence, TakesTheStateOffTheDevice) {
  const RunResult here = train(job("training { steps: 2 } ", ""), on({1, 2}));
  const RunResult away = train(job("training { steps: 2 } ", everything), on({1, 2}));
  const RunResult some = train(job("training { steps: 2 } ", half), on({1, 2}));
  for (const char* purpose : {"weights", "gradients", "optimizer state"}) {
    const std::string there = std::string(purpose) + " (host)";
    EXPECT_EQ(on_device(away.memory[0], purpose), 0u);
    EXPECT_EQ(on_device(away.memory[0], there), on_device(here.memory[0], purpose));
    EXPECT_EQ(on_device(here.memory[0], there), 0u);
    EXPECT_EQ(on_device(some.memory[0], purpose) + on_device(some.memory[0], there),
              on_device(here.memory[0], purpose));
    EXPECT_GT(on_device(some.memory[0], purpose), 0u);
  }
}

}  // namespace
}  // namespace ananke
