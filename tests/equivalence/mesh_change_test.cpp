// A checkpoint loads on any mesh with the same bits, and weights of a Hugging Face folder do.
#include <gtest/gtest.h>

#include "runtime/checkpoint/huggingface.h"
#include "runtime/checkpoint/huggingface_export.h"
#include "runtime/checkpoint/reader.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

// Divides by 1, 2, 3, 4 and 8 ranks; 6 experts do not divide by 4 or 8.
constexpr const char* rows = "training { steps: 3 rows_per_step: 24 } evaluation { every_steps: 0 }";
const MeshShape meshes[] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {1, 8}, {2, 4}, {4, 2}, {8, 1}};

void expect_same(const RunResult& got, const RunResult& wanted) {
  ASSERT_EQ(wanted.states.size(), 2 * wanted.weights.size());
  EXPECT_EQ(got.weights, wanted.weights);
  EXPECT_EQ(got.states, wanted.states);
}

TEST(MeshChange, ACheckpointOfFourRanksIsTheSameBitsOnEveryMesh) {
  for (const MeshShape& writer : {MeshShape{1, 4}, MeshShape{2, 2}}) {
    const TemporaryFolder folder;
    const Job job = small_job(folder.path(), rows);
    const RunResult saved = train(job, {writer});
    for (const MeshShape& reader : meshes) {
      SCOPED_TRACE(to_string(writer) + " to " + to_string(reader));
      expect_same(start_only(job, {reader, 1, true}), saved);
    }
  }
}

// 4 ranks, then 3, then 8 with replicas, then 4 again: the state goes around unchanged, and training goes on with the
// data where it was.
TEST(MeshChange, ARunGoesOnOnAnotherMesh) {
  const TemporaryFolder folder;
  const std::string more = "training { steps: 9 rows_per_step: 24 } evaluation { every_steps: 0 }";
  const RunResult straight = train(small_job(folder / "straight", more), {{1, 4}});
  const Job job = small_job(folder / "moved", more);
  std::vector<StepRecord> steps;
  bool resume = false;
  std::uint64_t stop = 3;
  for (const MeshShape& mesh : {MeshShape{1, 4}, MeshShape{1, 3}, MeshShape{4, 2}}) {
    const RunResult part = train(job, {mesh, 1, resume, stop});
    steps.insert(steps.end(), part.steps.begin(), part.steps.end());
    resume = true;
    stop += 3;
  }
  ASSERT_EQ(steps.size(), straight.steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].step(), i + 1);
    EXPECT_EQ(steps[i].total_valid_tokens(), straight.steps[i].total_valid_tokens()) << "other data in step " << i + 1;
    EXPECT_NEAR(steps[i].loss(), straight.steps[i].loss(), 1e-5 * straight.steps[i].loss()) << "step " << i + 1;
  }
}

// Trained on one mesh, exported, imported on others: the weights stay the same bits.
TEST(MeshChange, ExportedWeightsStartTrainingOnEveryMesh) {
  const TemporaryFolder folder;
  Job job = small_job(folder / "first", rows);
  const RunResult trained = train(job, {{1, 4}});
  CheckpointReader checkpoint(folder / "first");
  const auto read = [&](const Parameter& parameter, std::int64_t begin, std::span<float> out) {
    checkpoint.read(parameter.name, "weight", parameter.shape, begin, out);
  };
  export_huggingface(job.model(), {folder / "hf", SafetensorsType::f32, 20'000}, read);
  job.set_initial_weights((folder / "hf").string());
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 3}, MeshShape{2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    EXPECT_EQ(start_only(job, {mesh}).weights, trained.weights);
  }
  // Imported, trained for a step, exported again: other weights, of the same model.
  job.set_run_dir((folder / "second").string());
  job.mutable_training()->set_steps(1);
  const RunResult further = train(job, {{1, 2}});
  EXPECT_NE(further.weights, trained.weights);
  CheckpointReader second(folder / "second");
  export_huggingface(second.job().model(), {folder / "hf2", SafetensorsType::f32},
                     [&](const Parameter& parameter, std::int64_t begin, std::span<float> out) {
                       second.read(parameter.name, "weight", parameter.shape, begin, out);
                     });
  const Safetensors exported = Safetensors::open(folder / "hf2");
  for (const auto& [name, values] : further.weights) EXPECT_EQ(exported.read_f32(name), values) << name;
}

}  // namespace
}  // namespace ananke
