#include "runtime/config/override.h"

#include <gtest/gtest.h>

#include "runtime/config/schema.h"
#include "tests/refusal.h"
#include "tests/runtime/config/job_text.h"

namespace ananke {
namespace {

class SetOption : public testing::Test {
 protected:
  Job load(const std::vector<std::string>& overrides) const { return file_.load(valid_job, overrides).job; }
  std::string tune(const std::vector<std::string>& overrides) const {
    const LoadedJob loaded = file_.load(valid_job, overrides);
    return loaded.schema->unpack(loaded.job.plugins(0).config())->ShortDebugString();
  }
  void expect_refused(const std::string& text, std::initializer_list<std::string> words) const {
    expect_error([&] { load({text}); }, ErrorKind::config, words, text.c_str());
  }
  JobFile file_;
};

TEST_F(SetOption, RefusesAPathThatLeadsNowhere) {
  expect_refused("model.hidden_size", {"--set model.hidden_size: ", "no '='"});
  expect_refused("=3", {"--set =3: ", "no step of a path"});
  expect_refused("model..hidden_size=8", {"''", "no step of a path"});
  expect_refused("model.hiden_size=8", {"--set model.hiden_size=8: ", "Model", "did you mean 'hidden_size'?"});
  expect_refused("modle.hidden_size=8", {"Job", "'modle'", "did you mean 'model'?"});
  expect_refused("model.hidden_size.x=8", {"'hidden_size' is a uint32", "'x'"});
  expect_refused("model[0].hidden_size=8", {"'model' is no list"});
  expect_refused("model.hidden_size[0]=8", {"'hidden_size' is no list"});
  expect_refused("optimizer.use=tune", {"'optimizer' is a list of 1", "optimizer[0]"});
  expect_refused("optimizer[5].use=tune", {"optimizer[5] does not exist", "1 entries"});
  expect_refused("optimizer[x].use=tune", {"'optimizer[x]'", "whole number"});
  expect_refused("optimizer[-1].use=tune", {"whole number"});
  expect_refused("optimizer[99999999999].use=tune", {"whole number"});
  expect_refused("model.mlp_only_layers[2]=1", {"mlp_only_layers[2] does not exist", "0 entries"});
}

TEST_F(SetOption, RefusesAValueOfAnotherKind) {
  expect_refused("model.hidden_size=abc", {"--set model.hidden_size=abc: ", "expected integer", "abc"});
  expect_refused("model.hidden_size=", {"--set model.hidden_size=: "});
  expect_refused("model.hidden_size=8 seed: 3", {"--set model.hidden_size=8 seed: 3: "});
  expect_refused("training.seed=1 steps: 3", {"sets more than 'seed'"});
  expect_refused("training.recompute=FUL", {"'FUL'", "did you mean 'FULL'?"});
  expect_refused("model=3", {"--set model=3: "});
  expect_refused("model.hidden_size+=3", {"+= appends to a list", "'hidden_size' is no list"});
  expect_refused("model.mlp_only_layers[0]=[1,2]", {"takes one value"});
  expect_refused("plugins.tune.lr=0", {"--set plugins.tune.lr=0: plugins.tune.lr is 0", "above 0"});
  expect_refused("training.steps=0", {"--set training.steps=0: training.steps is 0", "at least 1"});
  expect_refused("training.rows_per_microbatch=3", {"--set training.rows_per_microbatch=3: ", "is 3", "8 rows"});
}

TEST_F(SetOption, RefusesAPluginThatIsNotThere) {
  expect_refused("plugins.tuna.lr=1", {"no plugin 'tuna'", "did you mean 'tune'?"});
  expect_refused("plugins.tune.l_r=1", {"Tune", "'l_r'", "did you mean 'lr'?"});
  expect_refused("plugins.tune=1", {"name a field of plugin 'tune'"});
  expect_refused("plugins.fsdp.lr=1", {"'fsdp' takes no config", "'lr'"});
  expect_refused("plugins[3].config.lr=1", {"plugins[3] does not exist", "names 1"});
}

TEST_F(SetOption, SetsScalarsTextAndNames) {
  const Job job = load({"model.hidden_size=64", "training.clip_norm=1e-3", "training.recompute=FULL", "name=a b",
                        "model.tie_word_embeddings=true", "training.seed=18446744073709551615", "training.steps=3",
                        "training.steps=4"});
  EXPECT_EQ(job.model().hidden_size(), 64u);
  EXPECT_EQ(job.training().clip_norm(), 1e-3);
  EXPECT_EQ(job.training().recompute(), Training::FULL);
  EXPECT_EQ(job.name(), "a b");
  EXPECT_TRUE(job.model().tie_word_embeddings());
  EXPECT_EQ(job.training().seed(), 18446744073709551615ull);
  EXPECT_EQ(job.training().steps(), 4u) << "the last wins";
  EXPECT_EQ(load({"name=\"quoted\""}).name(), "quoted");
  EXPECT_EQ(load({"name="}).name(), "");
  EXPECT_EQ(load({"name=a=b"}).name(), "a=b");
  EXPECT_EQ(load({"name=it's \"x\\y"}).name(), "it's \"x\\y");
}

TEST_F(SetOption, SetsListsWholeByElementAndByAppending) {
  const std::string dense = "model.intermediate_size=16";
  const auto layers = [&](std::vector<std::string> overrides) {
    overrides.push_back(dense);
    const Job job = load(overrides);
    const auto& list = job.model().mlp_only_layers();
    return std::vector<std::uint32_t>(list.begin(), list.end());
  };
  using Layers = std::vector<std::uint32_t>;
  EXPECT_EQ(layers({"model.mlp_only_layers=[0,2]"}), (Layers{0, 2}));
  EXPECT_EQ(layers({"model.mlp_only_layers=[0,2]", "model.mlp_only_layers+=3"}), (Layers{0, 2, 3}));
  EXPECT_EQ(layers({"model.mlp_only_layers=[0,2]", "model.mlp_only_layers[0]=1"}), (Layers{1, 2}));
  EXPECT_EQ(layers({"model.mlp_only_layers=[0,2]", "model.mlp_only_layers[2]=3"}), (Layers{0, 2, 3}));
  EXPECT_EQ(layers({"model.mlp_only_layers=3"}), (Layers{3}));
  EXPECT_EQ(layers({"model.mlp_only_layers=[0]", "model.mlp_only_layers=[]"}), Layers{});
  EXPECT_NE(
      tune({"plugins.tune.words=[a, b c]", "plugins.tune.words+=d"}).find(R"(words: "a" words: "b c" words: "d")"),
      std::string::npos);
}

TEST_F(SetOption, SetsEntriesOfListsAndWholeMessages) {
  const Job job = load({"optimizer[1].use=tune", "optimizer[0].match=norm",
                        "learning_rate={shape: COSINE warmup_steps: 2}", "optimizer+={match: \"x\" use: \"tune\"}"});
  ASSERT_EQ(job.optimizer_size(), 3);
  EXPECT_EQ(job.optimizer(0).match(), "norm");
  EXPECT_EQ(job.optimizer(1).match(), ".*");
  EXPECT_EQ(job.optimizer(2).match(), "x");
  EXPECT_EQ(job.learning_rate().shape(), LearningRate::COSINE);
}

TEST_F(SetOption, SetsFieldsOfAPluginsConfig) {
  EXPECT_NE(tune({"plugins.tune.lr=5e-2"}).find("lr: 0.05"), std::string::npos);
  EXPECT_NE(tune({"plugins[0].config.lr=5e-2"}).find("lr: 0.05"), std::string::npos);
  EXPECT_NE(tune({"plugins.tune.groups[0].match=bias"}).find("match: \"bias\" size: 3"), std::string::npos);
  EXPECT_NE(tune({"plugins.tune.other.match=x"}).find("other { match: \"x\" }"), std::string::npos);
  EXPECT_NE(tune({"plugins.tune.scales=[0.5, 2]"}).find("scales: 0.5 scales: 2"), std::string::npos);
}

TEST_F(SetOption, AddsAPluginThatTheJobDoesNotName) {
  const Job job = load({"plugins[1].use=other_parameters"});
  ASSERT_EQ(job.plugins_size(), 3);
  EXPECT_EQ(job.plugins(1).use(), "other_parameters");
  EXPECT_EQ(job.plugins(2).use(), "backend_host");
}

}  // namespace
}  // namespace ananke
