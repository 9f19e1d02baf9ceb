// What an optimizer plugin says of its matrices is looked at before the engine plans with it.
#include <gtest/gtest.h>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/engine/guarded_roles.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

struct Answers {
  OptimizerLayout layout = OptimizerLayout::whole_matrix;
  std::int64_t rows = 4;
  std::size_t workspace = 0;
};

class Answering final : public Optimizer {
 public:
  explicit Answering(Answers answers) : answers_(answers) {}
  OptimizerLayout layout(const Parameter&) const override { return answers_.layout; }
  double cost(const Parameter&) const override { return 1; }
  std::vector<StateTensor> states(const Parameter&) const override { return {}; }
  double learning_rate() const override { return 1; }
  std::int64_t matrix_rows(const Parameter&) const override { return answers_.rows; }
  std::size_t transform_workspace(const OperatorSet&, std::int64_t, std::int64_t, std::int64_t) const override {
    return answers_.workspace;
  }

 private:
  Answers answers_;
};

class NoStream final : public Stream {
 public:
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
};

const Parameter matrix{"model.layers.0.self_attn.q_proj.weight", {12, 3}, ParameterKind::matrix, 0, 0, -1};
const Parameter norm{"model.norm.weight", {3}, ParameterKind::norm, 0, -1, -1};

std::unique_ptr<Optimizer> make(Answers answers) {
  const Job job;
  const Site site;
  return guarded(std::make_unique<Answering>(answers),
                 PluginGuard("optimizer", "own", "/x/own.so", std::make_shared<CallTrail>()),
                 RoleContext{job, site, {}, 0});
}

TEST(GuardedOptimizer, MayAskForTheWholeOfMatricesOnly) {
  EXPECT_EQ(make({})->layout(matrix), OptimizerLayout::whole_matrix);
  EXPECT_ERROR(make({})->layout(norm), ErrorKind::plugin, "plugin 'own' (/x/own.so), in layout", "model.norm.weight",
               "[3]");
  EXPECT_EQ(make({.layout = OptimizerLayout::any_fragment})->layout(norm), OptimizerLayout::any_fragment);
}

TEST(GuardedOptimizer, CutsAParameterIntoEqualMatrices) {
  EXPECT_EQ(make({})->matrix_rows(matrix), 4);
  for (const std::int64_t rows : {0, -4, 5, 24}) {
    EXPECT_ERROR(make({.rows = rows})->matrix_rows(matrix), ErrorKind::plugin, "in matrix_rows", matrix.name,
                 "matrices of " + std::to_string(rows) + " rows");
  }
}

TEST(GuardedOptimizer, AsksForWorkspaceOfSense) {
  const OperatorSet operators;
  EXPECT_EQ(make({.workspace = 64})->transform_workspace(operators, 1, 4, 3), 64u);
  EXPECT_ERROR(make({.workspace = ~std::size_t{0}})->transform_workspace(operators, 1, 4, 3), ErrorKind::plugin,
               "in transform_workspace", "make no sense");
}

TEST(GuardedOptimizer, NamesTheCallThatItsLayoutNeedsAndItLacks) {
  NoStream stream;
  const OperatorSet operators;
  const OptimizerUpdate part{matrix, 0, {}, {}, {}, 1, 1, {}, {}};
  const auto optimizer = make({});
  EXPECT_ERROR(optimizer->update(stream, operators, part), ErrorKind::plugin, "plugin 'own'", "it has no update()");
  EXPECT_ERROR(optimizer->prepare(stream, operators, part, {}), ErrorKind::plugin, "it has no prepare()");
  EXPECT_ERROR(optimizer->transform(stream, operators, {}), ErrorKind::plugin, "it has no transform()");
  EXPECT_ERROR(optimizer->apply(stream, operators, part, {}), ErrorKind::plugin, "it has no apply()");
}

}  // namespace
}  // namespace ananke
