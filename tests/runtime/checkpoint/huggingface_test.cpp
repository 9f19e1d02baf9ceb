#include "runtime/checkpoint/huggingface.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ananke/model.pb.h"
#include "runtime/checkpoint/safetensors_writer.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

const std::filesystem::path golden = std::filesystem::path(ANANKE_SOURCE_DIR) / "tests/golden/qwen3_moe_a";

// The golden case's config with one key replaced, added or (empty value) removed.
class Config {
 public:
  Config& set(const std::string& key, const std::string& value) {
    members_[key] = value;
    return *this;
  }
  Config& remove(const std::string& key) {
    members_.erase(key);
    return *this;
  }
  Model read() const {
    std::string text = "{\n";
    for (const auto& [key, value] : members_) text += (text.size() > 2 ? ",\n" : "") + ("\"" + key + "\": ") + value;
    return read_huggingface_config(folder_.write("config.json", text + "}"));
  }
  std::string refused() const {
    return refusal(ErrorKind::data, [&] { read(); });
  }

 private:
  TemporaryFolder folder_;
  std::map<std::string, std::string> members_ = {
      {"model_type", "\"qwen3_moe\""},
      {"vocab_size", "128"},
      {"hidden_size", "32"},
      {"num_hidden_layers", "2"},
      {"num_attention_heads", "4"},
      {"num_key_value_heads", "2"},
      {"head_dim", "16"},
      {"num_experts", "8"},
      {"num_experts_per_tok", "2"},
      {"moe_intermediate_size", "24"},
      {"rope_theta", "1e4"},
      {"rope_scaling", "null"},
  };
};

TEST(HuggingfaceConfig, RefusesWhatChangesTheMathematicsByNameAndValue) {
  const auto refused = [](const std::string& key, const std::string& value) {
    const std::string message = Config().set(key, value).refused();
    EXPECT_NAMES(message, key);
    EXPECT_NAMES(message, "config.json");
    return message;
  };
  EXPECT_NAMES(refused("model_type", "\"qwen2_moe\""), "qwen2_moe");
  EXPECT_NAMES(refused("attention_bias", "true"), "true");
  EXPECT_NAMES(refused("hidden_act", "\"gelu\""), "gelu");
  refused("use_sliding_window", "true");
  EXPECT_NAMES(refused("rope_scaling", R"({"rope_type": "yarn", "factor": 4.0})"), "yarn");
  EXPECT_NAMES(refused("rope_scaling", R"({"factor": 4.0})"), "factor");
  EXPECT_NAMES(refused("rope_parameters", R"({"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})"),
               "linear");
  EXPECT_NAMES(refused("rope_parameters", R"({"full_attention": {"rope_theta": 10000.0}})"), "full_attention");
  EXPECT_NAMES(refused("rope_parameters", R"({"rope_theta": 5000.0})"), "rope_theta is 10000");
  EXPECT_NAMES(refused("num_local_experts", "4"), "num_local_experts is 4");
  EXPECT_NAMES(refused("attention_dropout", "0.1"), "0.1");
  EXPECT_NAMES(refused("router_aux_loss_coef", "-0.1"), "at least 0");
  refused("partial_rotary_factor", "0.5");
  refused("shared_expert_intermediate_size", "64");
  refused("router_jitter_noise", "0.01");
  refused("layer_types", R"(["full_attention", "sliding_attention"])");
  refused("quantization_config", R"({"quant_method": "fp8"})");
  EXPECT_NAMES(refused("rms_norm_epsilon", "1e-5"), "is rms_norm_eps meant?");
  refused("some_new_trick", "null");
  EXPECT_NAMES(Config().remove("model_type").refused(), "model_type is missing");
  EXPECT_NAMES(Config().remove("num_experts").refused(), "num_experts is missing");
  EXPECT_NAMES(Config().remove("hidden_size").refused(), "hidden_size is missing");
}

TEST(HuggingfaceConfig, RefusesImpossibleValues) {
  const auto refused = [](const std::string& key, const std::string& value) {
    return Config().set(key, value).refused();
  };
  EXPECT_NAMES(refused("num_key_value_heads", "3"), "not a multiple");
  EXPECT_NAMES(refused("head_dim", "15"), "even");
  EXPECT_NAMES(refused("num_experts_per_tok", "9"), "9 of 8");
  EXPECT_NAMES(refused("hidden_size", "0"), "at least 1");
  EXPECT_NAMES(refused("hidden_size", "-32"), "whole number");
  EXPECT_NAMES(refused("hidden_size", "32.5"), "whole number");
  EXPECT_NAMES(refused("hidden_size", "4294967296"), "whole number");
  EXPECT_NAMES(refused("hidden_size", "\"32\""), "whole number");
  EXPECT_NAMES(refused("rms_norm_eps", "0"), "above 0");
  EXPECT_NAMES(refused("tie_word_embeddings", "1"), "true or false");
  EXPECT_NAMES(refused("mlp_only_layers", "[0, -1]"), "layer numbers");
  EXPECT_NAMES(refused("mlp_only_layers", "[0]"), "intermediate_size is missing");
  EXPECT_NAMES(refused("hidden_size", "NaN"), "JSON");
  EXPECT_NAMES(refused("num_hidden_layers", "2147483647"), "at most 10000");
  EXPECT_NAMES(refused("num_experts", "65537"), "at most 65536");
  EXPECT_NAMES(Config().remove("num_experts").set("num_local_experts", "65537").refused(), "at most 65536");
  for (const char* step : {"2147483648", "4294967295", "4294967296", "4294967297"}) {  // -2^31, -1, 0 and 1 in 32 bits
    EXPECT_NAMES(refused("decoder_sparse_step", step), "at most 2147483647");
  }
  EXPECT_NAMES(refusal(ErrorKind::data, [] { read_huggingface_config("/no/such/folder"); }), "/no/such/folder");
}

TEST(HuggingfaceConfig, ReadsAStepOfMoeLayersThatReachesNone) {
  const Model model = Config().set("decoder_sparse_step", "2147483647").set("intermediate_size", "64").read();
  EXPECT_EQ(model.decoder_sparse_step(), 2147483647U);
  EXPECT_FALSE(is_moe_layer(model, 0) || is_moe_layer(model, 1));
}

TEST(HuggingfaceConfig, ReadsTheAuxiliaryLoss) {
  const Model model = Config().set("output_router_logits", "true").set("router_aux_loss_coef", "0.02").read();
  EXPECT_TRUE(model.output_router_logits());
  EXPECT_EQ(model.router_aux_loss_coef(), 0.02);
  EXPECT_FALSE(Config().set("router_aux_loss_coef", "0.02").read().output_router_logits());
}

// The sigmoid router's configuration, small.
struct Dots1 : Config {
  Dots1() {
    set("model_type", "\"dots1\"").remove("num_experts").set("n_routed_experts", "12").set("n_group", "4");
    set("topk_group", "2").set("routed_scaling_factor", "2.5").set("n_shared_experts", "0");
    set("num_experts_per_tok", "4").set("norm_topk_prob", "true").set("sliding_window", "null");
  }
};

TEST(HuggingfaceConfig, ReadsTheSigmoidRouterOfDots1) {
  const Model model = Dots1().set("first_k_dense_replace", "1").set("intermediate_size", "40").read();
  EXPECT_EQ(model.scoring_func(), Model::SIGMOID);
  EXPECT_EQ(model.num_experts(), 12u);
  EXPECT_EQ(model.group_routing(), Model::GROUPS_LIMITED_TOP_K);
  EXPECT_EQ(model.n_group(), 4u);
  EXPECT_EQ(model.topk_group(), 2u);
  EXPECT_EQ(model.routed_scaling_factor(), 2.5);
  EXPECT_TRUE(model.e_score_correction_bias());
  EXPECT_FALSE(is_moe_layer(model, 0));
  EXPECT_TRUE(is_moe_layer(model, 1));
  const Model ungrouped = Dots1().set("n_group", "1").set("topk_group", "1").read();
  EXPECT_EQ(ungrouped.group_routing(), Model::NO_GROUPS);
}

TEST(HuggingfaceConfig, RefusesWhatTheRouterOfDots1CannotBe) {
  EXPECT_NAMES(Dots1().set("n_shared_experts", "1").refused(), "shared experts");
  EXPECT_NAMES(Dots1().set("n_group", "5").refused(), "groups of equal size");
  EXPECT_NAMES(Dots1().set("n_group", "12").refused(), "groups of equal size of at least 2");
  EXPECT_NAMES(Dots1().set("topk_group", "5").refused(), "n_group is 4");
  EXPECT_NAMES(Dots1().set("num_experts_per_tok", "7").refused(), "2 groups of 3 experts");
  EXPECT_NAMES(Dots1().set("scoring_func", "\"softmax\"").refused(), "sigmoid");
  EXPECT_NAMES(Dots1().remove("sliding_window").set("max_window_layers", "1").refused(), "sliding window");
  EXPECT_NAMES(Config().set("n_group", "4").refused(), "n_group");
}

TEST(HuggingfaceConfig, ReadsBothDialectsAlike) {
  const Model old = Config().read();
  const Model fresh = Config()
                          .remove("num_experts")
                          .set("num_local_experts", "8")
                          .remove("rope_theta")
                          .remove("rope_scaling")
                          .set("rope_parameters", R"({"rope_theta": 10000.0, "rope_type": "default"})")
                          .read();
  EXPECT_EQ(old.SerializeAsString(), fresh.SerializeAsString());
  EXPECT_EQ(old.num_experts(), 8U);
  EXPECT_EQ(old.rope_theta(), 10000.0);
  const Model both = Config().set("num_local_experts", "8").set("rope_parameters", R"({"rope_theta": 10000})").read();
  EXPECT_EQ(old.SerializeAsString(), both.SerializeAsString());
}

TEST(HuggingfaceConfig, TakesTransformersDefaultsForWhatIsMissing) {
  const Model model = Config()
                          .remove("head_dim")
                          .remove("rope_theta")
                          .set("num_attention_heads", "8")
                          .remove("num_key_value_heads")
                          .read();
  EXPECT_FALSE(model.norm_topk_prob());
  EXPECT_TRUE(model.has_norm_topk_prob());  // the product's own default is another one
  EXPECT_EQ(model.decoder_sparse_step(), 1U);
  EXPECT_EQ(model.num_key_value_heads(), 4U);
  EXPECT_EQ(model.head_dim(), 4U);
  EXPECT_EQ(model.rope_theta(), 10000.0);
  EXPECT_EQ(model.rms_norm_eps(), 1e-6);
  EXPECT_FALSE(model.tie_word_embeddings());
  EXPECT_EQ(Config().set("mlp_only_layers", "null").read().mlp_only_layers_size(), 0);
}

TEST(HuggingfaceConfig, ReadsDenseQwen3) {
  Config config;
  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size"}) config.remove(key);
  config.set("model_type", "\"qwen3\"")
      .set("intermediate_size", "64")
      .set("layer_types", R"(["full_attention", "full_attention"])");
  const Model model = config.read();
  EXPECT_EQ(model.num_experts(), 0U);
  EXPECT_EQ(model.intermediate_size(), 64U);
  config.remove("head_dim");
  EXPECT_EQ(config.read().head_dim(), 128U);
  EXPECT_NAMES(config.remove("intermediate_size").refused(), "intermediate_size is missing");
}

TEST(HuggingfaceWeights, ReadsTheGoldenFolder) {
  const Model model = read_huggingface_config(golden);
  EXPECT_EQ(model.num_experts(), 8U);
  EXPECT_TRUE(model.norm_topk_prob());
  const ParameterTable table(model);
  const HuggingfaceWeights weights(golden, model, table);
  const Safetensors file = Safetensors::open(golden / "model.safetensors");
  for (const Parameter& parameter : table.parameters()) {
    std::vector<float> values(static_cast<std::size_t>(parameter.shape.elements()));
    weights.read(parameter.name, values);
    EXPECT_EQ(values, file.read_f32(parameter.name)) << parameter.name;
  }
}

TEST(HuggingfaceWeights, FindsEveryExpertsGradientInTheStackedTensors) {
  const Model model = read_huggingface_config(golden);
  const Safetensors file = Safetensors::open(golden / "case.safetensors");
  std::vector<char> covered(
      static_cast<std::size_t>(file.info("grad.model.layers.1.mlp.experts.gate_up_proj").elements));
  const ParameterTable table(model);
  for (const Parameter& parameter : table.parameters()) {
    const StoredParameter stored = find_stored(file, "grad." + parameter.name, parameter.shape);
    if (stored.tensor != "grad.model.layers.1.mlp.experts.gate_up_proj") continue;
    for (std::int64_t i = 0; i < stored.elements; ++i) ++covered[static_cast<std::size_t>(stored.begin + i)];
  }
  EXPECT_TRUE(std::all_of(covered.begin(), covered.end(), [](char times) { return times == 1; }));
  const StoredParameter up = find_stored(file, "grad.model.layers.1.mlp.experts.3.up_proj.weight", {24, 32});
  EXPECT_EQ(up.begin, 3 * 48 * 32 + 24 * 32);  // gate rows first
}

// A one-layer dense-free model of the smallest size, its tensors edited by the test.
class SmallFolder {
 public:
  SmallFolder(bool tied, bool stacked) {
    config_ = fmt::format(R"({{"model_type":"qwen3_moe","vocab_size":4,"hidden_size":2,"num_hidden_layers":1,
      "num_attention_heads":1,"num_key_value_heads":1,"head_dim":2,"num_experts":2,"num_experts_per_tok":1,
      "moe_intermediate_size":3,"tie_word_embeddings":{}}})",
                          tied);
    folder_.write("config.json", config_);
    const Model model = read_huggingface_config(folder_.path());
    const ParameterTable table(model);
    float next = 0;
    for (const Parameter& parameter : table.parameters()) {
      if (stacked && parameter.expert >= 0) continue;
      std::vector<std::int64_t> shape;
      for (int i = 0; i < parameter.shape.rank(); ++i) shape.push_back(parameter.shape[i]);
      add(parameter.name, shape, next++);
    }
    if (stacked) {
      add("model.layers.0.mlp.experts.gate_up_proj", {2, 6, 2}, 100);
      add("model.layers.0.mlp.experts.down_proj", {2, 2, 3}, 200);
    }
  }
  void add(const std::string& name, std::vector<std::int64_t> shape, float first) {
    std::int64_t elements = 1;
    for (const std::int64_t size : shape) elements *= size;
    std::vector<float>& values = values_[name];
    values.resize(static_cast<std::size_t>(elements));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
    shapes_[name] = std::move(shape);
  }
  void remove(const std::string& name) { values_.erase(name); }
  HuggingfaceWeights open() {
    std::vector<SafetensorsOutput> outputs;
    for (const auto& [name, values] : values_) outputs.push_back({name, shapes_[name], values});
    write_safetensors(folder_ / "model.safetensors", outputs);
    const Model model = read_huggingface_config(folder_.path());
    const ParameterTable table(model);
    return HuggingfaceWeights(folder_.path(), model, table);
  }
  std::string refused() {
    return refusal(ErrorKind::data, [&] { open(); });
  }

 private:
  TemporaryFolder folder_;
  std::string config_;
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

TEST(HuggingfaceWeights, ReadsStackedExperts) {
  SmallFolder folder(false, true);
  const HuggingfaceWeights weights = folder.open();
  std::vector<float> out(6);
  weights.read("model.layers.0.mlp.experts.1.up_proj.weight", out);
  EXPECT_EQ(out, (std::vector<float>{118, 119, 120, 121, 122, 123}));
  weights.read("model.layers.0.mlp.experts.1.down_proj.weight", out);
  EXPECT_EQ(out, (std::vector<float>{206, 207, 208, 209, 210, 211}));
  EXPECT_NAMES(
      refusal(ErrorKind::internal, [&] { weights.read("model.layers.0.mlp.experts.0.up_proj.weight", out, 1); }),
      "asked for 6 from 1");
}

TEST(HuggingfaceWeights, RefusesMissingStrangeAndMisshapenTensors) {
  SmallFolder extra(false, false);
  extra.add("model.layers.0.self_attn.q_proj.bias", {2}, 0);
  EXPECT_NAMES(extra.refused(), "q_proj.bias");
  SmallFolder missing(false, false);
  missing.remove("model.norm.weight");
  EXPECT_NAMES(missing.refused(), "model.norm.weight");
  SmallFolder transposed(false, false);
  transposed.add("model.layers.0.mlp.experts.0.gate_proj.weight", {2, 3}, 0);
  EXPECT_NAMES(transposed.refused(), "[2, 3], but the config makes it [3, 2]");
  SmallFolder more(false, true);
  more.add("model.layers.0.mlp.experts.down_proj", {3, 2, 3}, 0);
  EXPECT_NAMES(more.refused(), "3 experts, but the config has 2");
  SmallFolder fewer(false, true);
  fewer.add("model.layers.0.mlp.experts.down_proj", {1, 2, 3}, 0);
  EXPECT_NAMES(fewer.refused(), "1 experts, but the config has 2");
  SmallFolder both(false, true);
  both.add("model.layers.0.mlp.experts.0.up_proj.weight", {3, 2}, 0);
  EXPECT_NAMES(both.refused(), "unclear");
  SmallFolder headless(false, false);
  headless.remove("lm_head.weight");
  EXPECT_NAMES(headless.refused(), "tie_word_embeddings is false");
}

TEST(HuggingfaceWeights, TakesATiedHeadThatIsAbsentOrEqual) {
  SmallFolder absent(true, false);
  absent.open();
  SmallFolder equal(true, false);
  equal.add("lm_head.weight", {4, 2}, 0);  // the embedding is the first parameter: 0, 1, 2, ...
  equal.open();
  SmallFolder different(true, false);
  different.add("lm_head.weight", {4, 2}, 1);
  EXPECT_NAMES(different.refused(), "differs");
}

}  // namespace
}  // namespace ananke
