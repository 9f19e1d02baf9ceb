#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>

#include "ananke/model.pb.h"
#include "ananke/options.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/nearest.h"
#include "runtime/base/printable.h"
#include "runtime/checkpoint/huggingface.h"

namespace ananke {
namespace {

// Keys that change nothing the decoder computes: bookkeeping, generation, and what other heads than the language
// model's use.
constexpr const char* harmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_commit_hash",
    "_experts_implementation",
    "_experts_implementation_internal",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "experts_implementation",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "is_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "max_window_layers",
    "min_length",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};

// Keys that may stand in the file only with a value that changes nothing.
struct Neutral {
  const char* key;
  const char* values;  // as JSON, separated by spaces
  const char* why;
};
constexpr Neutral neutral[] = {
    {"add_cross_attention", "false null", "cross-attention is not offered"},
    {"attention_bias", "false null", "attention has no biases here"},
    {"attention_dropout", "0 0.0 null", "dropout is not offered"},
    {"auto_map", "null {}", "the folder's own Python code cannot be run"},
    {"cross_attention_hidden_size", "null", "cross-attention is not offered"},
    {"embedding_multiplier", "1 1.0 null", "embeddings are not scaled here"},
    {"final_logit_softcapping", "null", "logits are not capped here"},
    {"attn_logit_softcapping", "null", "attention scores are not capped here"},
    {"hidden_act", "\"silu\"", "the MLP is SwiGLU"},
    {"is_encoder_decoder", "false null", "there is a decoder only"},
    {"mlp_bias", "false null", "the MLP has no biases here"},
    {"n_shared_experts", "0 null", "shared experts are not offered"},
    {"num_nextn_predict_layers", "0 null", "multi-token prediction is not offered"},
    {"num_shared_experts", "0 null", "shared experts are not offered"},
    {"partial_rotary_factor", "1 1.0 null", "RoPE turns whole heads here"},
    {"per_layer_config", "null {}", "all layers share one configuration"},
    {"pruned_heads", "{} null", "all heads are computed"},
    {"qkv_bias", "false null", "attention has no biases here"},
    {"quantization_config", "null", "quantised weights are not read"},
    {"router_jitter_noise", "0 0.0 null", "the router has no noise here"},
    {"shared_expert_intermediate_size", "0 null", "shared experts are not offered"},
    {"tie_encoder_decoder", "false null", "there is a decoder only"},
    {"use_qk_norm", "true", "queries and keys are always normalised"},
    {"use_sliding_window", "false null", "attention sees the whole document"},
};

class ConfigReader {
 public:
  explicit ConfigReader(const std::filesystem::path& path) : path_(path.string()), json_(load(path)) {
    if (!json_.is(Json::Type::object)) fail(ErrorKind::data, "{}: {} instead of an object", path_, json_.type_name());
  }

  [[noreturn]] void refuse(std::string_view key, std::string_view what) const {
    const Json* value = json_.find(key);
    fail(ErrorKind::data, "{}: {}{}: {}", path_, printable(key, 100), value ? ": " + value->brief() : "", what);
  }

  // The member, marked as understood; null where it is missing.
  const Json* take(const std::string& key) {
    known_.insert(key);
    return json_.find(key);
  }
  bool has(const std::string& key) const { return json_.find(key) != nullptr; }

  std::uint32_t whole(const std::string& key, std::optional<std::uint32_t> missing = {}) {
    const Json* value = take(key);
    if (!value && missing) return *missing;
    if (!value) fail(ErrorKind::data, "{}: {} is missing and has no sensible default; add it", path_, key);
    const auto number = value->as_unsigned();
    const std::uint64_t most = most_of(key);
    if (!number || *number > most) refuse(key, fmt::format("must be a whole number, at most {}", most));
    return static_cast<std::uint32_t>(*number);
  }
  std::uint32_t positive(const std::string& key, std::optional<std::uint32_t> missing = {}) {
    const std::uint32_t value = whole(key, missing);
    if (value == 0) refuse(key, "must be at least 1");
    return value;
  }
  double above_zero(const std::string& key, double missing) {
    const Json* value = take(key);
    if (!value) return missing;
    const auto number = value->as_double();
    if (!number || *number <= 0) refuse(key, "must be a number above 0");
    return *number;
  }
  bool boolean(const std::string& key, bool missing) {
    const Json* value = take(key);
    if (!value) return missing;
    if (!value->is(Json::Type::boolean)) refuse(key, "must be true or false");
    return value->boolean();
  }

  // Refuses what is not neutral, then whatever nobody asked for.
  void check_rest() {
    for (const Neutral& rule : neutral) check_neutral(rule);
    for (const char* key : harmless) known_.insert(key);
    for (const auto& [key, value] : json_.members()) {
      if (known_.contains(key)) continue;
      const std::string near = nearest_name(key, {known_.begin(), known_.end()});
      refuse(key, fmt::format("this key is not known, so it may change what the model computes{}",
                              near.empty() ? "; remove it if it does not" : "; is " + near + " meant?"));
    }
  }

  const std::string& path() const { return path_; }

 private:
  static Json load(const std::filesystem::path& path);

  // What a job's model may have: fields have the names of keys. Sizes become signed 32-bit numbers in places.
  static std::uint64_t most_of(const std::string& key) {
    const auto* field = Model::descriptor()->FindFieldByName(key == "num_local_experts" ? "num_experts" : key);
    const double most = field != nullptr ? field->options().GetExtension(rule).maximum() : 0;
    return most > 0 ? static_cast<std::uint64_t>(most) : std::numeric_limits<std::int32_t>::max();
  }

  void check_neutral(const Neutral& rule) {
    const Json* value = take(rule.key);
    if (!value) return;
    const std::string allowed = fmt::format(" {} ", rule.values);
    const bool fits = value->brief().find(' ') == std::string::npos &&
                      allowed.find(fmt::format(" {} ", value->brief())) != std::string::npos;
    if (!fits)
      refuse(rule.key, fmt::format("{}; only {} can be read", rule.why, fmt::join(words(rule.values), " or ")));
  }
  static std::vector<std::string> words(std::string_view text) {
    std::vector<std::string> result;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(' ', at), text.size());
      result.emplace_back(text.substr(at, end - at));
      at = end + 1;
    }
    return result;
  }

  std::string path_;
  Json json_;
  std::set<std::string> known_;
};

Json ConfigReader::load(const std::filesystem::path& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) fail(ErrorKind::data, "cannot open {}: {}", path.string(), std::strerror(errno));
  std::string text;
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, file.get())) {
    text.append(buffer, got);
    if (text.size() > (std::size_t{16} << 20))
      fail(ErrorKind::data, "{} is longer than 16 MiB: not a config", path.string());
  }
  if (std::ferror(file.get())) fail(ErrorKind::data, "cannot read {}: {}", path.string(), std::strerror(errno));
  return Json::parse(text, path.string());
}

void check_rope_member(const ConfigReader& config, const std::string& key, const std::string& name, const Json& value) {
  const bool type = name == "rope_type" || name == "type";
  if (type && value.text() != "default") {
    config.refuse(key, fmt::format("{} {} is not offered, only \"default\" is", name, value.brief()));
  }
  if (name == "partial_rotary_factor" && value.as_double() != 1.0) {
    config.refuse(key, fmt::format("{} {}: RoPE turns whole heads here", name, value.brief()));
  }
  if (!type && name != "rope_theta" && name != "partial_rotary_factor") {
    config.refuse(key, fmt::format("\"{}\" is not known here (rope_theta and rope_type \"default\" are)", name));
  }
}

// rope_theta stands at the top, or in rope_parameters, or (transformers 4) beside a rope_scaling that is null.
double read_rope_theta(ConfigReader& config) {
  constexpr double transformers_default = 10000;
  double theta = config.above_zero("rope_theta", transformers_default);
  for (const std::string key : {"rope_parameters", "rope_scaling"}) {
    const Json* parameters = config.take(key);
    if (!parameters || parameters->is(Json::Type::null)) continue;
    if (!parameters->is(Json::Type::object)) config.refuse(key, "must be an object or null");
    for (const auto& [name, value] : parameters->members()) check_rope_member(config, key, name, value);
    const Json* inner = parameters->find("rope_theta");
    if (!inner) continue;
    const auto number = inner->as_double();
    if (!number || *number <= 0) config.refuse(key, "rope_theta must be a number above 0");
    if (config.has("rope_theta") && *number != theta) config.refuse(key, fmt::format("but rope_theta is {}", theta));
    theta = *number;
  }
  return theta;
}

void read_layer_types(ConfigReader& config) {
  const Json* types = config.take("layer_types");
  if (!types || types->is(Json::Type::null)) return;
  for (const Json& type : types->items()) {
    if (type.text() != "full_attention") config.refuse("layer_types", "only \"full_attention\" is offered");
  }
  if (!types->is(Json::Type::array)) config.refuse("layer_types", "must be a list");
}

// In the family's own name, or in the common one of transformers 5.
std::uint32_t read_num_experts(ConfigReader& config, const char* own) {
  constexpr const char* common = "num_local_experts";
  const bool both = config.has(own) && config.has(common);
  if (both && config.whole(own) != config.whole(common)) {
    config.refuse(own, fmt::format("but {} is {}", common, config.whole(common)));
  }
  const bool local = config.has(common);
  config.take(local ? own : common);
  return config.whole(local ? common : own);
}

void read_dense_layers(ConfigReader& config, Model& model) {
  model.set_decoder_sparse_step(config.positive("decoder_sparse_step", 1));
  const Json* dense = config.take("mlp_only_layers");
  if (!dense || dense->is(Json::Type::null)) return;
  if (!dense->is(Json::Type::array)) config.refuse("mlp_only_layers", "must be a list of layer numbers");
  std::set<std::uint64_t> layers;
  for (const Json& item : dense->items()) {
    const auto layer = item.as_unsigned();
    if (!layer) config.refuse("mlp_only_layers", "must be a list of layer numbers");
    if (*layer < model.num_hidden_layers()) layers.insert(*layer);
  }
  for (const std::uint64_t layer : layers) model.add_mlp_only_layers(static_cast<std::uint32_t>(layer));
}

void read_experts(ConfigReader& config, Model& model, const char* number) {
  model.set_num_experts(read_num_experts(config, number));
  model.set_norm_topk_prob(config.boolean("norm_topk_prob", false));
  const std::uint32_t chosen = config.positive("num_experts_per_tok", 8);
  if (model.num_experts() > 0) {
    model.set_moe_intermediate_size(config.positive("moe_intermediate_size"));
    model.set_num_experts_per_tok(chosen);
    if (chosen > model.num_experts()) {
      config.refuse("num_experts_per_tok",
                    fmt::format("{} of {} experts cannot be chosen", chosen, model.num_experts()));
    }
  } else {
    config.take("moe_intermediate_size");
  }
}

// The auxiliary loss of Qwen3-MoE counts only with output_router_logits.
void read_auxiliary_loss(ConfigReader& config, Model& model) {
  if (config.boolean("output_router_logits", false)) model.set_output_router_logits(true);
  const Json* coefficient = config.take("router_aux_loss_coef");
  if (!coefficient) return;
  const auto number = coefficient->as_double();
  if (!number || *number < 0) config.refuse("router_aux_loss_coef", "must be a number of at least 0");
  model.set_router_aux_loss_coef(*number);
}

// The router of DeepSeek-V3, in the words of dots1: sigmoid scores, a bias to choose by, groups.
void read_sigmoid_router(ConfigReader& config, Model& model) {
  model.set_scoring_func(Model::SIGMOID);
  model.set_e_score_correction_bias(true);
  model.set_routed_scaling_factor(config.above_zero("routed_scaling_factor", 1));
  const std::uint32_t groups = config.positive("n_group", 1), kept = config.positive("topk_group", 1);
  const std::uint32_t size = model.num_experts() / groups;
  if (kept > groups) config.refuse("topk_group", fmt::format("but n_group is {}", groups));
  if (size * groups != model.num_experts() || size < 2) {
    config.refuse("n_group",
                  fmt::format("{} experts do not make groups of equal size of at least 2", model.num_experts()));
  }
  if (model.num_experts_per_tok() > std::uint64_t{kept} * size) {
    config.refuse("num_experts_per_tok", fmt::format("but {} groups of {} experts are kept", kept, size));
  }
  if (groups > 1) {
    model.set_group_routing(Model::GROUPS_LIMITED_TOP_K);
    model.set_n_group(groups);
    model.set_topk_group(kept);
  }
  const std::uint32_t dense = config.whole("first_k_dense_replace", 0);
  for (std::uint32_t layer = 0; layer < std::min(dense, model.num_hidden_layers()); ++layer) {
    model.add_mlp_only_layers(layer);
  }
  const Json* scoring = config.take("scoring_func");
  if (scoring && scoring->text() != "sigmoid" && scoring->text() != "noaux_tc") {
    config.refuse("scoring_func", "only \"sigmoid\" goes with model_type \"dots1\"");
  }
  const Json* method = config.take("topk_method");
  if (method && method->text() != "noaux_tc") config.refuse("topk_method", "only \"noaux_tc\" can be read");
}

// transformers lets layers from max_window_layers on slide over sliding_window tokens, unless layer_types says it all.
void check_windows(ConfigReader& config, const Model& model) {
  const Json* window = config.take("sliding_window");
  const Json* types = config.take("layer_types");
  const bool listed = types && !types->is(Json::Type::null), whole = window && window->is(Json::Type::null);
  const std::uint32_t first = config.whole("max_window_layers", 62);
  if (!listed && !whole && first < model.num_hidden_layers()) {
    config.refuse("max_window_layers", fmt::format("layers {} to {} would attend a sliding window; attention sees the "
                                                   "whole document",
                                                   first, model.num_hidden_layers() - 1));
  }
}

void read_attention(ConfigReader& config, Model& model, std::uint32_t default_key_heads, bool divides) {
  const std::uint32_t heads = config.positive("num_attention_heads");
  model.set_num_attention_heads(heads);
  const Json* groups = config.take("num_key_value_heads");
  const bool own = groups && groups->is(Json::Type::null);
  model.set_num_key_value_heads(own ? heads : config.positive("num_key_value_heads", default_key_heads));
  if (heads % model.num_key_value_heads() != 0) {
    fail(ErrorKind::data, "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}{}", config.path(),
         heads, model.num_key_value_heads(), groups ? "" : " (transformers' default)");
  }
  const Json* width = config.take("head_dim");
  const bool divided = width ? width->is(Json::Type::null) : divides;
  if (divided && model.hidden_size() % heads != 0) {
    fail(ErrorKind::data, "{}: head_dim is missing and hidden_size {} is not a multiple of num_attention_heads {}",
         config.path(), model.hidden_size(), heads);
  }
  model.set_head_dim(divided ? model.hidden_size() / heads : config.positive("head_dim", 128));
  if (model.head_dim() % 2 != 0) {
    fail(ErrorKind::data, "{}: head_dim is {}, but RoPE needs an even one", config.path(), model.head_dim());
  }
}

std::filesystem::path config_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
}

}  // namespace

Model read_huggingface_config(const std::filesystem::path& path) {
  ConfigReader config(config_file(path));
  const Json* type = config.take("model_type");
  const std::string family = type ? type->text() : "";
  const bool dense = family == "qwen3", sigmoid = family == "dots1";
  if (!dense && !sigmoid && family != "qwen3_moe") {
    constexpr const char* readable = R"("qwen3_moe", "qwen3" and "dots1" can be read)";
    if (!type) fail(ErrorKind::data, "{}: model_type is missing; {}", config.path(), readable);
    config.refuse("model_type", fmt::format("only {}", readable));
  }
  Model model;
  model.set_vocab_size(config.positive("vocab_size"));
  model.set_hidden_size(config.positive("hidden_size"));
  model.set_num_hidden_layers(config.positive("num_hidden_layers"));
  read_attention(config, model, family == "qwen3_moe" ? 4 : 32, !dense);
  if (!dense) read_experts(config, model, sigmoid ? "n_routed_experts" : "num_experts");
  if (family == "qwen3_moe") {
    read_dense_layers(config, model);
    read_auxiliary_loss(config, model);
  }
  if (sigmoid) {
    read_sigmoid_router(config, model);
    check_windows(config, model);
  }
  model.set_rms_norm_eps(config.above_zero("rms_norm_eps", 1e-6));
  model.set_rope_theta(read_rope_theta(config));
  model.set_tie_word_embeddings(config.boolean("tie_word_embeddings", false));
  model.set_initializer_range(config.above_zero("initializer_range", 0.02));
  if (config.take("max_position_embeddings")) {
    model.set_max_position_embeddings(config.positive("max_position_embeddings"));
  }
  read_layer_types(config);
  config.take("sliding_window");  // Qwen3's is dropped unless use_sliding_window is true, which is refused
  int dense_layers = 0;
  for (int layer = 0; layer < static_cast<int>(model.num_hidden_layers()); ++layer)
    dense_layers += !is_moe_layer(model, layer);
  if (config.take("intermediate_size") || dense_layers > 0)
    model.set_intermediate_size(config.positive("intermediate_size"));
  config.check_rest();
  return model;
}

}  // namespace ananke
