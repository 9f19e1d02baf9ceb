#include <gtest/gtest.h>

#include <array>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/adamw/adamw.pb.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/optimizer.h"

extern "C" const ananke::PluginDescriptorV1* ananke_plugin_v1();

namespace ananke {
namespace {

struct Made {
  std::unique_ptr<Optimizer> optimizer;
  std::string refusal;
};

Made make(const plugin::AdamW& config) {
  Job job;
  Site site;
  const RoleContext context{job, site, {}, 0};
  const std::string bytes = config.SerializeAsString();
  void* object = nullptr;
  char message[256] = "";
  const int code = ananke_plugin_v1()->create(&context, bytes.data(), bytes.size(), &object, message, sizeof message);
  if (code != 0) return {nullptr, fmt::format("{}: {}", name_of(static_cast<ErrorKind>(code)), message)};
  return {std::unique_ptr<Optimizer>(static_cast<Optimizer*>(object)), ""};
}

class Recorder final : public AdamWUpdate {
 public:
  void update(Stream&, const Arguments& a) override {
    got = a;
    weights.push_back(a.weight);
  }
  Arguments got{};
  std::vector<TensorView> weights;  // of every call
};

class NoStream final : public Stream {
 public:
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
};

TEST(AdamW, RefusesABetaOfOneByName) {
  plugin::AdamW config;
  config.set_beta1(1);
  EXPECT_EQ(make(config).refusal, "config: adamw: beta1 1 must be below 1; set it to 0.9");
  config.set_beta1(0);
  config.set_beta2(1);
  EXPECT_EQ(make(config).refusal, "config: adamw: beta2 1 must be below 1; set it to 0.95");
}

TEST(AdamW, DescriptorNamesRoleAndConfig) {
  EXPECT_STREQ(ananke_plugin_v1()->role, "optimizer");
  EXPECT_STREQ(ananke_plugin_v1()->name, "adamw");
  EXPECT_STREQ(ananke_plugin_v1()->config_message, "ananke.plugin.AdamW");
}

TEST(AdamW, AsksForAnyFragmentAndTwoStates) {
  const Made made = make({});
  ASSERT_TRUE(made.optimizer) << made.refusal;
  const Parameter parameter{"w", {3, 5}, ParameterKind::matrix, 0, 0, -1};
  EXPECT_EQ(made.optimizer->layout(parameter), OptimizerLayout::any_fragment);
  EXPECT_EQ(made.optimizer->cost(parameter), 15);
  const auto states = made.optimizer->states(parameter);
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0].name, "exp_avg");
  EXPECT_EQ(states[1].name, "exp_avg_sq");
  EXPECT_EQ(made.optimizer->learning_rate(), 8e-4);
}

TEST(AdamW, HandsTheOperatorEverythingAndScalesItsLearningRate) {
  plugin::AdamW config;
  config.set_lr(0.5);
  config.set_beta1(0.25);
  config.set_beta2(0.75);
  config.set_eps(0.125);
  config.set_weight_decay(2);
  const Made made = make(config);
  ASSERT_TRUE(made.optimizer) << made.refusal;
  float w[2] = {}, g[2] = {}, m[2] = {}, v[2] = {}, scale = 1;
  std::int32_t finite = 1;
  const Parameter parameter{"w", {4}, ParameterKind::norm, 0, 0, -1};
  const TensorView states[] = {view_of(m, {2}), view_of(v, {2})};
  Recorder recorder;
  OperatorSet operators;
  operators.adamw = &recorder;
  NoStream stream;
  made.optimizer->update(
      stream, operators,
      {parameter, 2, view_of(w, {2}), view_of(g, {2}), states, 7, 0.5, view_of(&scale, {1}), view_of(&finite, {1})});
  EXPECT_EQ(recorder.got.weight.data, w);
  EXPECT_EQ(recorder.got.gradient.data, g);
  EXPECT_EQ(recorder.got.exp_avg.data, m);
  EXPECT_EQ(recorder.got.exp_avg_sq.data, v);
  EXPECT_EQ(recorder.got.scale.data, &scale);
  EXPECT_EQ(recorder.got.finite.data, &finite);
  EXPECT_EQ(recorder.got.step, 7u);
  EXPECT_EQ(recorder.got.lr, 0.25);
  EXPECT_EQ(recorder.got.beta1, 0.25);
  EXPECT_EQ(recorder.got.beta2, 0.75);
  EXPECT_EQ(recorder.got.eps, 0.125);
  EXPECT_EQ(recorder.got.weight_decay, 2);
}

TEST(AdamW, TakesNeighboursInAllTensorsAsOne) {
  const Made made = make({});
  ASSERT_TRUE(made.optimizer) << made.refusal;
  // Parts of 2, 3, 1, 4 and 2 elements: all lie one behind the other in weights and gradients; a hole in one state
  // stands before the fourth.
  constexpr std::int64_t counts[] = {2, 3, 1, 4, 2};
  std::vector<float> w(12), g(12), m(12), v(13);
  const Parameter parameter{"w", {12}, ParameterKind::norm, 0, 0, -1};
  std::vector<std::array<TensorView, 2>> states;
  std::vector<OptimizerUpdate> parts;
  float one = 1;
  std::int32_t yes = 1;
  states.reserve(std::size(counts));
  for (std::int64_t at = 0; const std::int64_t count : counts) {
    const Shape shape{count};
    states.push_back({view_of(&m[static_cast<std::size_t>(at)], shape),
                      view_of(&v[static_cast<std::size_t>(at < 6 ? at : at + 1)], shape)});
    parts.push_back({parameter, at, view_of(&w[static_cast<std::size_t>(at)], shape),
                     view_of(&g[static_cast<std::size_t>(at)], shape), states.back(), 1, 1, view_of(&one, {1}),
                     view_of(&yes, {1})});
    at += count;
  }
  EXPECT_EQ(neighbours(parts), 3u);
  EXPECT_EQ(neighbours(std::span(parts).subspan(2)), 1u);
  EXPECT_EQ(neighbours({}), 0u);
  Recorder recorder;
  OperatorSet operators;
  operators.adamw = &recorder;
  NoStream stream;
  made.optimizer->update_all(stream, operators, parts);
  ASSERT_EQ(recorder.weights.size(), 2u);
  EXPECT_EQ(recorder.weights[0].data, &w[0]);
  EXPECT_EQ(recorder.weights[0].elements(), 6);
  EXPECT_EQ(recorder.weights[1].data, &w[6]);
  EXPECT_EQ(recorder.weights[1].elements(), 6);
  EXPECT_EQ(recorder.got.exp_avg.data, &m[6]);
  EXPECT_EQ(recorder.got.exp_avg_sq.data, &v[7]);
  EXPECT_EQ(recorder.got.exp_avg_sq.elements(), 6);
}

}  // namespace
}  // namespace ananke
