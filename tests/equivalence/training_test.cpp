// Loss curves: equal runs are the same bits, so are resumed ones; other meshes follow as far as rounding allows.
#include <gtest/gtest.h>

#include <cmath>

#include "ananke/telemetry.pb.h"
#include "runtime/base/error.h"
#include "runtime/comm/placement.h"
#include "runtime/data/token_store.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"
#include "tests/test_gpus.h"

namespace ananke {
namespace {

void expect_close(const RunResult& got, const RunResult& wanted, double bound) {
  ASSERT_EQ(got.steps.size(), wanted.steps.size());
  for (std::size_t i = 0; i < got.steps.size(); ++i) {
    EXPECT_NEAR(got.steps[i].loss(), wanted.steps[i].loss(), bound * wanted.steps[i].loss()) << "step " << i + 1;
    EXPECT_EQ(got.steps[i].valid_tokens(), wanted.steps[i].valid_tokens());
  }
}

void expect_same_bits(const RunResult& got, const RunResult& wanted) {
  ASSERT_EQ(got.steps.size(), wanted.steps.size());
  for (std::size_t i = 0; i < got.steps.size(); ++i) {
    EXPECT_EQ(got.steps[i].step(), wanted.steps[i].step());
    EXPECT_EQ(got.steps[i].loss(), wanted.steps[i].loss()) << "step " << wanted.steps[i].step();
    EXPECT_EQ(got.steps[i].gradient_norm(), wanted.steps[i].gradient_norm()) << "step " << wanted.steps[i].step();
    EXPECT_EQ(got.steps[i].total_valid_tokens(), wanted.steps[i].total_valid_tokens());
  }
  EXPECT_EQ(got.weights, wanted.weights);
}

// The last steps of a run, as a resumed one reports them.
RunResult tail(const RunResult& run, std::size_t steps) {
  RunResult part = run;
  part.steps.assign(run.steps.end() - static_cast<std::ptrdiff_t>(steps), run.steps.end());
  return part;
}

TEST(Training, FollowsTheOneRankRunForTenStepsWithFreeRouting) {
  const TemporaryFolder folder;
  const RunResult one = train(small_job(folder / "one"), {{1, 1}});
  EXPECT_LT(one.steps.back().loss(), one.steps.front().loss());
  int run = 0;
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{2, 1}, MeshShape{2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    expect_close(train(small_job(folder / std::to_string(run++)), {mesh}), one, 1e-5);
  }
}

TEST(Training, FollowsTheOneRankRunForFiftyStepsWithRoutingReplayed) {
  const TemporaryFolder folder;
  const std::string log = (folder / "routing").string();
  const RunResult one =
      train(small_job(folder / "one", "training { steps: 50 record_routing: \"" + log + "\" }"), {{1, 1}, 2});
  int run = 0;
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{2, 2}, MeshShape{4, 1}}) {
    SCOPED_TRACE(to_string(mesh));
    const Job job = small_job(folder / std::to_string(run++), "training { steps: 50 replay_routing: \"" + log + "\" }");
    expect_close(train(job, {mesh, mesh.ranks() == 1 ? 4 : 1}), one, 1e-5);
  }
}

TEST(Training, OfTwoEqualRunsIsTheSameBits) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 4}, MeshShape{2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult first = train(small_job(folder / ("a" + to_string(mesh))), {mesh});
    const RunResult second = train(small_job(folder / ("b" + to_string(mesh))), {mesh});
    expect_same_bits(second, first);
    ASSERT_EQ(first.evaluations.size(), 2u);
    EXPECT_EQ(first.evaluations[1].loss(), second.evaluations[1].loss());
  }
}

// Stopped twice and resumed twice: the data goes on where it was, not from its beginning, the second time too.
TEST(Training, ResumedTwiceIsTheSameBitsAsTheStraightRun) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 4}, MeshShape{2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult straight = train(small_job(folder / ("straight" + to_string(mesh))), {mesh});
    const Job job = small_job(folder / ("resumed" + to_string(mesh)));
    const RunResult first = train(job, {mesh, 1, false, 3});
    ASSERT_EQ(first.steps.back().step(), 3u);
    const RunResult second = train(job, {mesh, 1, true, 6});
    ASSERT_EQ(second.steps.front().step(), 4u);
    ASSERT_EQ(second.steps.back().step(), 6u);
    const RunResult third = train(job, {mesh, 1, true});
    expect_same_bits(third, tail(straight, 4));
  }
}

TEST(Training, StopsWithinAnEvaluationAndGoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 4}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult straight = train(small_job(folder / ("straight" + to_string(mesh))), {mesh});
    const Job job = small_job(folder / ("stopped" + to_string(mesh)));
    const RunResult first = train(job, {mesh, 1, false, 5, "evaluation"});
    EXPECT_EQ(first.steps.back().step(), 5u);
    EXPECT_TRUE(first.evaluations.empty()) << "a part of the held-out rows is no evaluation";
    expect_same_bits(train(job, {mesh, 1, true}), tail(straight, 5));
  }
}

// Held-out sets of fewer rows than there are ranks, and of a few more: some ranks run out of rows before others.
constexpr const char* uneven_sets =
    "evaluation { held_out { name: 'one' generated_documents: 1 rows: 1 } "
    "             held_out { name: 'three' generated_documents: 20 rows: 3 } "
    "             held_out { name: 'nine' generated_documents: 40 rows: 9 } }";

TEST(Training, ThatIsEvaluatedIsTheSameBitsAsOneThatIsNot) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    Job job = small_job(folder / ("often" + to_string(mesh)), uneven_sets);
    job.mutable_evaluation()->set_every_steps(1);
    const RunResult often = train(job, {mesh});
    ASSERT_EQ(often.evaluations.size(), 40u);
    job.clear_evaluation();
    job.set_run_dir(folder / ("never" + to_string(mesh)));
    const RunResult never = train(job, {mesh});
    EXPECT_TRUE(never.evaluations.empty());
    expect_same_bits(often, never);
    EXPECT_EQ(often.states, never.states);
  }
}

TEST(Training, HeldOutLossOfEverySetDoesNotDependOnTheMesh) {
  const TemporaryFolder folder;
  const std::string changes = std::string("training { steps: 1 } ") + uneven_sets;
  const RunResult one = train(small_job(folder / "1", changes), {{1, 1}});
  ASSERT_EQ(one.evaluations.size(), 4u);
  EXPECT_EQ(one.evaluations[3].held_out(), "nine");
  EXPECT_EQ(one.evaluations[3].valid_tokens(), 9u * 32);
  for (const MeshShape& mesh : {MeshShape{1, 8}, MeshShape{2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult more = train(small_job(folder / to_string(mesh), changes), {mesh});
    ASSERT_EQ(more.evaluations.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      SCOPED_TRACE(one.evaluations[i].held_out());
      EXPECT_EQ(more.evaluations[i].held_out(), one.evaluations[i].held_out());
      EXPECT_EQ(more.evaluations[i].valid_tokens(), one.evaluations[i].valid_tokens());
      EXPECT_NEAR(more.evaluations[i].loss(), one.evaluations[i].loss(), 1e-5 * one.evaluations[i].loss());
    }
  }
}

TEST(Training, SaysBitsPerByteWhereAllOfATextWasEvaluated) {
  const TemporaryFolder folder;
  TokenStoreWriter writer(folder / "text.h5", "words", "hash", -1, 61);
  for (int document = 0; document < 3; ++document) {
    writer.append(std::vector<std::int32_t>(50, document));
    writer.end_document();
  }
  writer.finish("made", "hash", 1000);
  const std::string store = "tokens: '" + (folder / "text.h5").string() + "' ";
  const RunResult run =
      train(small_job(folder / "run", "training { steps: 1 } evaluation { held_out { name: 'text' " + store +
                                          "} held_out { name: 'part' " + store + "rows: 4 } }"),
            {{1, 2}});
  ASSERT_EQ(run.evaluations.size(), 3u);
  EXPECT_FALSE(run.evaluations[0].has_bits_per_byte()) << "generated tokens are of no text";
  EXPECT_EQ(run.evaluations[1].valid_tokens(), 3u * 49);
  EXPECT_NEAR(run.evaluations[1].bits_per_byte(), run.evaluations[1].loss() / std::log(2.0) * 147 / 1000, 1e-9);
  EXPECT_FALSE(run.evaluations[2].has_bits_per_byte()) << "how many bytes the first rows stand for is not known";
}

TEST(Training, StopsAtANonFiniteStepAndNamesIt) {
  const TemporaryFolder folder;
  // Weights this large overflow the logits.
  const Job job = small_job(folder.path(), "model { initializer_range: 1e30 }");
  try {
    train(job, {{1, 2}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::numeric);
    EXPECT_NE(std::string(error.what()).find("step 1"), std::string::npos) << error.what();
  }
}

TEST(Training, SkipsANonFiniteStepWithoutChangingWeights) {
  const TemporaryFolder folder;
  const Job job =
      small_job(folder.path(), "model { initializer_range: 1e30 } training { steps: 2 on_non_finite: SKIP }");
  const RunResult run = train(job, {{1, 2}});
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_TRUE(run.steps[0].skipped());
  EXPECT_EQ(run.weights.at("model.norm.weight"), std::vector<float>(24, 1.0F));
}

// The step record's lines against the placement: every kept unit is gathered once a step, and reduced once.
TEST(Training, RecordsTheBytesOfEveryStep) {
  const TemporaryFolder folder;
  // One microbatch, so that nothing is gathered or reduced twice while memory lasts.
  const Job job = small_job(folder.path(), "training { steps: 4 } evaluation { every_steps: 0 }");
  const MeshShape mesh{2, 2};
  const RunResult run = train(job, {mesh});
  Model model = job.model();
  const ParameterTable table(model);
  const Placement placement(table, mesh);
  std::map<std::string, std::uint64_t> wanted;
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    const bool experts = table.units()[unit].kind == UnitKind::experts;
    const auto part = static_cast<std::uint64_t>(placement.unit(unit).range()) * sizeof(float);
    const std::string kind = name_of(table.units()[unit].kind), axis = experts ? "expert_shard" : "shard";
    wanted[axis + " " + kind + " gather"] += part;
    wanted[axis + " " + kind + " reduce"] += part;
    wanted["replicate " + kind + " reduce"] += part;  // 2 (r - 1) / r of it, r being 2
  }
  ASSERT_EQ(run.steps.size(), 4u);
  for (const StepRecord& step : run.steps) {
    std::map<std::string, std::uint64_t> counted;
    std::uint64_t gathered = 0, reduced = 0;
    for (const TrafficRecord& line : step.traffic()) {
      counted[line.axis() + " " + line.unit() + " " + line.direction()] += line.bytes();
      (line.direction() == "gather" ? gathered : reduced) += line.bytes();
      EXPECT_EQ(line.resource(), "network");
    }
    EXPECT_EQ(counted, wanted) << "step " << step.step();
    EXPECT_EQ(gathered, step.gather_bytes());
    EXPECT_EQ(reduced, step.reduce_bytes());
  }
}

// What a start, an evaluation and a checkpoint read is of no step.
TEST(Training, ReadsTheDeviceOncePerStep) {
  const TemporaryFolder folder;
  const RunResult run =
      train(small_job(folder.path(), "evaluation { every_steps: 3 } checkpoint { every_steps: 4 }"), {{1, 2}});
  for (const StepRecord& step : run.steps) EXPECT_EQ(step.device_reads(), 1u + reads_of_experts()) << step.step();
}

}  // namespace
}  // namespace ananke
