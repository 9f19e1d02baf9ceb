#include <gtest/gtest.h>

#include <cmath>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/muon/muon.pb.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/optimizer.h"

extern "C" const ananke::PluginDescriptorV1* ananke_plugin_v1();

namespace ananke {
namespace {

struct Made {
  std::unique_ptr<Optimizer> optimizer;
  std::string refusal;
};

Job small_job() {
  Job job;
  Model& model = *job.mutable_model();
  model.set_vocab_size(50);
  model.set_hidden_size(24);
  model.set_num_hidden_layers(2);
  model.set_num_attention_heads(4);
  model.set_num_key_value_heads(2);
  model.set_head_dim(8);
  model.set_num_experts(3);
  model.set_num_experts_per_tok(2);
  model.set_moe_intermediate_size(12);
  return job;
}

Made make(const plugin::Muon& config) {
  const Job job = small_job();
  const Site site;
  const RoleContext context{job, site, {}, 0};
  const std::string bytes = config.SerializeAsString();
  void* object = nullptr;
  char message[1024] = "";
  const int code = ananke_plugin_v1()->create(&context, bytes.data(), bytes.size(), &object, message, sizeof message);
  if (code != 0) return {nullptr, fmt::format("{}: {}", name_of(static_cast<ErrorKind>(code)), message)};
  return {std::unique_ptr<Optimizer>(static_cast<Optimizer*>(object)), ""};
}

class Recorder final : public Momentum, public NewtonSchulz {
 public:
  void accumulate(Stream&, const Accumulate& a) override { accumulated = a; }
  void apply(Stream&, const Apply& a) override { applied = a; }
  std::size_t workspace(const Sizes& s) const override {
    return static_cast<std::size_t>(s.count * 10000 + s.rows * 100 + s.columns);
  }
  void run(Stream&, const NewtonSchulz::Arguments& a) override { ran = a; }
  Accumulate accumulated{};
  Apply applied{};
  NewtonSchulz::Arguments ran{};
};

class NoStream final : public Stream {
 public:
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
};

Parameter matrix(std::int64_t rows, std::int64_t columns) {
  return {"model.layers.0.self_attn.o_proj.weight", {rows, columns}, ParameterKind::matrix, 0, 0, -1};
}

TEST(Muon, RefusesWhatIsNoMatrixAndProposesRules) {
  const Made made = make({});
  ASSERT_TRUE(made.optimizer) << made.refusal;
  for (const Parameter& parameter :
       {Parameter{"model.embed_tokens.weight", {50, 24}, ParameterKind::embedding, 0, -1, -1},
        Parameter{"lm_head.weight", {50, 24}, ParameterKind::head, 0, -1, -1},
        Parameter{"model.norm.weight", {24}, ParameterKind::norm, 0, -1, -1}}) {
    try {
      made.optimizer->layout(parameter);
      ADD_FAILURE() << parameter.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      const std::string text = error.what();
      EXPECT_NE(text.find(parameter.name), std::string::npos) << text;
      EXPECT_NE(text.find(name_of(parameter.kind)), std::string::npos) << text;
      EXPECT_NE(text.find("optimizer { match: \".*\" use: \"adamw\" }"), std::string::npos) << text;
    }
  }
}

TEST(Muon, RefusesNumbersWithoutSenseByName) {
  plugin::Muon config;
  config.set_eps(0);
  EXPECT_EQ(make(config).refusal, "config: muon: eps 0 must be above 0; set it to 1e-7");
  config.clear_eps();
  config.set_momentum(1);
  EXPECT_EQ(make(config).refusal, "config: muon: momentum 1 must be below 1; set it to 0.95");
}

TEST(Muon, RefusesHeadsThatAreNone) {
  plugin::Muon config;
  config.set_per_head("q_proj(");
  EXPECT_NE(make(config).refusal.find("per_head 'q_proj(' is not a regular expression"), std::string::npos);
  config.set_per_head("w_proj");
  EXPECT_NE(make(config).refusal.find("per_head 'w_proj' matches no parameter"), std::string::npos);
  config.set_per_head("q_proj|experts");
  const std::string refusal = make(config).refusal;
  EXPECT_NE(refusal.find("mlp.experts.0.gate_proj.weight [12, 24]"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("head_dim 8"), std::string::npos) << refusal;
}

TEST(Muon, TakesEveryMatrixOfAModelWholeWithOneState) {
  const Made made = make({});
  ASSERT_TRUE(made.optimizer) << made.refusal;
  const Job job = small_job();
  int matrices = 0;
  const ParameterTable table(job.model());
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.kind != ParameterKind::matrix && parameter.kind != ParameterKind::expert &&
        parameter.kind != ParameterKind::router) {
      continue;
    }
    ++matrices;
    EXPECT_EQ(made.optimizer->layout(parameter), OptimizerLayout::whole_matrix) << parameter.name;
    EXPECT_EQ(made.optimizer->matrix_rows(parameter), parameter.shape[0]) << parameter.name;
    ASSERT_EQ(made.optimizer->states(parameter).size(), 1u);
    EXPECT_EQ(made.optimizer->states(parameter)[0].name, "momentum_buffer");
  }
  EXPECT_EQ(matrices, 2 * (4 + 1 + 9));
  EXPECT_EQ(made.optimizer->learning_rate(), 1e-3);
}

// In units of steps x s^2 x (2 l + s), s the short and l the long side.
TEST(Muon, CostsWhatItsProductsMultiply) {
  const Made made = make({});
  ASSERT_TRUE(made.optimizer) << made.refusal;
  EXPECT_EQ(made.optimizer->cost(matrix(6144, 1792)), 5.0 * 1792 * 1792 * (2 * 6144 + 1792));
  EXPECT_NEAR(made.optimizer->cost(matrix(6144, 1792)), 2.26e11, 0.005e11);
  EXPECT_NEAR(made.optimizer->cost(matrix(6144, 6144)), 3.48e12, 0.005e12);
  EXPECT_NEAR(made.optimizer->cost(matrix(256, 6144)), 4.1e9, 0.05e9);
}

TEST(Muon, CutsHeadsAndJudgesThemByTheirOwnShape) {
  plugin::Muon config;
  config.set_per_head("q_proj|k_proj");
  config.set_lr(1);
  config.set_weight_decay(0);
  const Made made = make(config);
  ASSERT_TRUE(made.optimizer) << made.refusal;
  const Parameter query{"model.layers.1.self_attn.q_proj.weight", {32, 24}, ParameterKind::matrix, 0, 1, -1};
  EXPECT_EQ(made.optimizer->matrix_rows(query), 8);
  EXPECT_EQ(made.optimizer->cost(query), 4.0 * 5 * 8 * 8 * (2 * 24 + 8));
  Recorder recorder;
  OperatorSet operators;
  operators.momentum = &recorder;
  NoStream stream;
  float value = 0, scale = 1;
  std::int32_t finite = 1;
  const TensorView one = view_of(&value, {1});
  const auto rate_of = [&](const Parameter& parameter) {
    made.optimizer->apply(stream, operators,
                          {parameter, 0, one, one, {&one, 1}, 1, 1.0, view_of(&scale, {1}), view_of(&finite, {1})},
                          one);
    return recorder.applied.rate;
  };
  EXPECT_EQ(rate_of(query), 1);  // a head is wide
  EXPECT_DOUBLE_EQ(rate_of(matrix(32, 24)), std::sqrt(32.0 / 24));
}

TEST(Muon, FollowsTheShapeAsItsRuleSays) {
  plugin::Muon config;
  config.set_lr(0.5);
  config.set_weight_decay(0.25);
  NoStream stream;
  Recorder recorder;
  OperatorSet operators;
  operators.momentum = &recorder;
  float value = 0, scale = 1;
  std::int32_t finite = 1;
  const TensorView one = view_of(&value, {1});
  const auto rate_of = [&](plugin::Muon::AdjustLr rule, std::int64_t rows, std::int64_t columns) {
    config.set_adjust_lr_fn(rule);
    const Parameter parameter = matrix(rows, columns);
    make(config).optimizer->apply(
        stream, operators, {parameter, 0, one, one, {&one, 1}, 1, 0.5, view_of(&scale, {1}), view_of(&finite, {1})},
        one);
    EXPECT_EQ(recorder.applied.keep, 1 - 0.25 * 0.25);  // never adjusted
    return recorder.applied.rate / 0.25;
  };
  EXPECT_DOUBLE_EQ(rate_of(plugin::Muon::ORIGINAL, 16, 4), 2);
  EXPECT_DOUBLE_EQ(rate_of(plugin::Muon::ORIGINAL, 4, 16), 1);
  EXPECT_DOUBLE_EQ(rate_of(plugin::Muon::MATCH_RMS_ADAMW, 16, 4), 0.8);
  EXPECT_DOUBLE_EQ(rate_of(plugin::Muon::MATCH_RMS_ADAMW, 4, 16), 0.8);
  EXPECT_DOUBLE_EQ(rate_of(plugin::Muon::SPECTRAL_UNCLAMPED, 16, 4), 2);
  EXPECT_DOUBLE_EQ(rate_of(plugin::Muon::SPECTRAL_UNCLAMPED, 4, 16), 0.5);
}

TEST(Muon, HandsTheOperatorsEverything) {
  plugin::Muon config;
  config.set_momentum(0.75);
  config.set_nesterov(false);
  config.set_ns_steps(3);
  config.set_ns_a(1);
  config.set_ns_b(2);
  config.set_ns_c(4);
  config.set_eps(0.5);
  config.set_newton_schulz(plugin::Muon::BFLOAT16);
  const Made made = make(config);
  ASSERT_TRUE(made.optimizer) << made.refusal;
  Recorder recorder;
  OperatorSet operators;
  operators.momentum = &recorder;
  operators.newton_schulz = &recorder;
  NoStream stream;
  float w[6] = {}, g[6] = {}, m[6] = {}, out[6] = {}, scale = 1;
  std::int32_t finite = 1;
  char workspace[1];
  const Parameter parameter = matrix(4, 3);
  const TensorView state = view_of(m, {6}), transfer = view_of(out, {6});
  const OptimizerUpdate part{parameter, 3, view_of(w, {6}),      view_of(g, {6}),      {&state, 1},
                             2,         1, view_of(&scale, {1}), view_of(&finite, {1})};
  made.optimizer->prepare(stream, operators, part, transfer);
  EXPECT_EQ(recorder.accumulated.gradient.data, g);
  EXPECT_EQ(recorder.accumulated.momentum.data, m);
  EXPECT_EQ(recorder.accumulated.out.data, out);
  EXPECT_EQ(recorder.accumulated.mu, 0.75);
  EXPECT_FALSE(recorder.accumulated.nesterov);
  EXPECT_EQ(recorder.accumulated.scale.data, &scale);
  EXPECT_EQ(recorder.accumulated.finite.data, &finite);
  EXPECT_EQ(made.optimizer->transform_workspace(operators, 2, 3, 4), 20304u);
  made.optimizer->transform(stream, operators, {view_of(out, {1, 2, 3}), {workspace, 1}, view_of(&finite, {1})});
  EXPECT_EQ(recorder.ran.matrices.data, out);
  EXPECT_EQ(recorder.ran.steps, 3);
  EXPECT_EQ(recorder.ran.a, 1);
  EXPECT_EQ(recorder.ran.b, 2);
  EXPECT_EQ(recorder.ran.c, 4);
  EXPECT_EQ(recorder.ran.eps, 0.5);
  EXPECT_EQ(recorder.ran.precision, NewtonSchulz::Precision::bf16);
  EXPECT_EQ(recorder.ran.finite.data, &finite);
  EXPECT_EQ(recorder.ran.workspace.data, workspace);
  made.optimizer->apply(stream, operators, part, transfer);
  EXPECT_EQ(recorder.applied.weight.data, w);
  EXPECT_EQ(recorder.applied.direction.data, out);
  EXPECT_EQ(recorder.applied.finite.data, &finite);
}

}  // namespace
}  // namespace ananke
