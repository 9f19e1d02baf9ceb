// Packed rows: a row's gradients are those of its documents apart, padding has none, and neither mesh nor resume
// changes what is trained on.
#include <gtest/gtest.h>

#include "runtime/base/random.h"
#include "runtime/engine/engine.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"
#include "tests/test_gpus.h"

namespace ananke {
namespace {

Job packed_job(const std::filesystem::path& run_dir, const std::string& changes = "") {
  Job job = small_job(run_dir, changes);
  add_plugin(job, "packing", "window_steps: 4");
  return job;
}

// A step has rows of one kind; a window has all kinds.
Rows first_window(const Job& job) {
  Rows rows;
  run_roles(job, {1, 1}, [&](const RoleContext&, EngineRoles& roles, Rendezvous&) {
    roles.batches->next(4 * job.training().rows_per_step(), rows);
  });
  return rows;
}

// Every document of the rows in a row of its own, the rest of it padding.
Rows documents_apart(const Rows& rows) {
  Rows apart;
  apart.row_length = rows.row_length;
  apart.valid_targets = rows.valid_targets;
  for (std::size_t r = 0; r < rows.segments.size(); ++r) {
    const std::vector<std::int32_t>& begins = rows.segments[r];
    for (std::size_t s = 0; s < begins.size(); ++s) {
      const std::int64_t row = static_cast<std::int64_t>(r) * rows.row_length, begin = row + begins[s];
      const std::int64_t end = s + 1 < begins.size() ? row + begins[s + 1] : row + rows.row_length;
      if (rows.targets[static_cast<std::size_t>(begin)] < 0) continue;
      apart.tokens.insert(apart.tokens.end(), rows.tokens.begin() + begin, rows.tokens.begin() + end);
      apart.targets.insert(apart.targets.end(), rows.targets.begin() + begin, rows.targets.begin() + end);
      for (std::int64_t i = 0; i < rows.row_length; ++i) {
        apart.positions.push_back(static_cast<std::int32_t>(i < end - begin ? i : i - (end - begin)));
      }
      apart.segments.push_back({0});
      if (end - begin < rows.row_length) apart.segments.back().push_back(static_cast<std::int32_t>(end - begin));
      const auto size = static_cast<std::size_t>(++apart.rows * rows.row_length);
      apart.tokens.resize(size, 0);
      apart.targets.resize(size, -1);
    }
  }
  return apart;
}

TEST(Packing, GivesARowTheGradientsOfItsDocumentsApart) {
  const TemporaryFolder folder;
  const Job job = packed_job(folder.path());
  const Rows packed = first_window(job), apart = documents_apart(packed);
  ASSERT_GT(apart.rows, packed.rows + 4) << "some rows hold several documents";
  RunRequest request{{1, 1}};
  request.rows = &packed;
  const GradientResult got = first_gradients(job, request);
  request.rows = &apart;
  const GradientResult wanted = first_gradients(job, request);
  EXPECT_EQ(got.valid_targets, wanted.valid_targets);
  EXPECT_NEAR(got.loss, wanted.loss, 1e-6 * wanted.loss);
  ASSERT_EQ(got.gradients.size(), wanted.gradients.size());
  for (const auto& [name, gradient] : wanted.gradients) {
    EXPECT_LE(relative_difference(got.gradients.at(name), gradient), 1e-5) << name;
  }
}

TEST(Packing, PaddingHasNoPartInLossOrGradient) {
  const TemporaryFolder folder;
  const Job job = packed_job(folder.path());
  const Rows zeros = documents_apart(first_window(job));  // most of it is padding
  Rows others = zeros;
  const RandomKey key(1, "padding");
  std::int64_t padding = 0;
  for (std::size_t i = 0; i < others.tokens.size(); ++i) {
    if (others.targets[i] >= 0) continue;
    others.tokens[i] = static_cast<std::int32_t>(key.below(i, job.model().vocab_size()));
    ++padding;
  }
  ASSERT_EQ(padding, zeros.rows * zeros.row_length - zeros.valid_targets);
  ASSERT_GT(padding, zeros.row_length);
  RunRequest request{{1, 1}};
  request.rows = &zeros;
  const GradientResult wanted = first_gradients(job, request);
  request.rows = &others;
  const GradientResult got = first_gradients(job, request);
  // On a GPU an expert's product is another kernel's where more padding came to it.
  EXPECT_NEAR(got.loss, wanted.loss, on_gpus() ? 1e-6 * wanted.loss : 0);
  for (const auto& [name, gradient] : wanted.gradients) {
    EXPECT_LE(relative_difference(got.gradients.at(name), gradient), 1e-6) << name;
  }
}

TEST(Packing, TrainsAlikeOnOneTwoAndFourRanks) {
  const TemporaryFolder folder;
  const RunResult one = train(packed_job(folder / "one"), {{1, 1}});
  ASSERT_EQ(one.steps.size(), 10u);
  std::uint64_t padding = 0;
  for (const StepRecord& step : one.steps) {
    EXPECT_EQ(step.padding_tokens() + step.valid_tokens(), 8u * 32);
    padding += step.padding_tokens();
  }
  EXPECT_GT(padding, 0u);
  for (const MeshShape& mesh : {MeshShape{1, 2}, MeshShape{1, 4}, MeshShape{2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult more = train(packed_job(folder / to_string(mesh)), {mesh});
    ASSERT_EQ(more.steps.size(), one.steps.size());
    for (std::size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_NEAR(more.steps[i].loss(), one.steps[i].loss(), 1e-5 * one.steps[i].loss()) << "step " << i + 1;
      EXPECT_EQ(more.steps[i].valid_tokens(), one.steps[i].valid_tokens());
      EXPECT_EQ(more.steps[i].padding_tokens(), one.steps[i].padding_tokens());
    }
  }
}

TEST(Packing, ResumedTwiceIsTheSameBitsAsTheStraightRun) {
  const TemporaryFolder folder;
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 4}}) {
    SCOPED_TRACE(to_string(mesh));
    const RunResult straight = train(packed_job(folder / ("straight" + to_string(mesh))), {mesh});
    const Job job = packed_job(folder / ("resumed" + to_string(mesh)));
    train(job, {mesh, 1, false, 3});
    train(job, {mesh, 1, true, 6});
    const RunResult third = train(job, {mesh, 1, true});
    ASSERT_EQ(third.steps.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(third.steps[i].loss(), straight.steps[6 + i].loss()) << "step " << 7 + i;
      EXPECT_EQ(third.steps[i].padding_tokens(), straight.steps[6 + i].padding_tokens());
    }
    EXPECT_EQ(third.weights, straight.weights);
  }
}

// The record names the rank whose rows cost most: with 32 tokens a row and 24 wide, attention is a part that shows.
TEST(Packing, RecordsWhoHasHowMuchToDo) {
  const TemporaryFolder folder;
  const RunResult packed = train(packed_job(folder / "packed"), {{1, 4}});
  const RunResult sequential = train(small_job(folder / "sequential"), {{1, 4}});
  double of_packed = 0, of_sequential = 0;
  for (std::size_t i = 0; i < 10; ++i) {
    for (const RunResult* run : {&packed, &sequential}) {
      const WorkRecord& work = run->steps[i].work();
      EXPECT_GE(work.largest(), 1.0);
      EXPECT_LT(work.largest_rank(), 4u);
      EXPECT_GT(work.attention(), 0.0);
      EXPECT_LT(work.attention(), 0.5);
      EXPECT_EQ(work.has_slowest(), i > 0) << "the first step has none before it";
      EXPECT_TRUE(i == 0 || work.slowest() >= 1.0);
    }
    of_packed += packed.steps[i].work().largest() - 1;
    of_sequential += sequential.steps[i].work().largest() - 1;
  }
  EXPECT_LT(of_packed, of_sequential);
}

}  // namespace
}  // namespace ananke
