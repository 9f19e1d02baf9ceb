#include "runtime/checkpoint/huggingface_export.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <vector>

#include "ananke/model.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/replace_file.h"

namespace ananke {
namespace {

// The shortest text that reads back as the same double, with a point so that it is no integer.
std::string real(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

class ConfigText {
 public:
  void add(const char* key, const std::string& value) {
    text_ += fmt::format("{}  \"{}\": {}", text_.empty() ? "" : ",\n", key, value);
  }
  void add(const char* key, std::uint32_t value) { add(key, std::to_string(value)); }
  std::string finish() const { return "{\n" + text_ + "\n}\n"; }

 private:
  std::string text_;
};

enum class Family { qwen3, qwen3_moe, dots1 };

// Dense layers before the first one with experts; nothing where a dense one comes after it.
std::optional<std::uint32_t> leading_dense_layers(const Model& model) {
  const auto layers = static_cast<int>(model.num_hidden_layers());
  int first = 0;
  while (first < layers && !is_moe_layer(model, first)) ++first;
  for (int layer = first; layer < layers; ++layer) {
    if (!is_moe_layer(model, layer)) return std::nullopt;
  }
  return static_cast<std::uint32_t>(first);
}

[[noreturn]] void refuse(const char* field, const std::string& what) {
  fail(ErrorKind::config,
       "the model cannot be exported: model.{} {}, which no family of transformers that computes the rest has; its "
       "weights stay readable in the checkpoint (HDF5)",
       field, what);
}

Family family_of(const Model& model) {
  if (model.num_experts() == 0) return Family::qwen3;
  if (model.group_routing() == Model::TOP_K_PER_GROUP) refuse("group_routing", "is TOP_K_PER_GROUP");
  if (model.scoring_func() == Model::SIGMOID) {
    if (!leading_dense_layers(model)) refuse("scoring_func", "is SIGMOID with dense layers after ones with experts");
    return Family::dots1;
  }
  if (model.group_routing() != Model::NO_GROUPS) refuse("group_routing", "is GROUPS_LIMITED_TOP_K with SOFTMAX");
  if (model.e_score_correction_bias()) refuse("e_score_correction_bias", "is true with SOFTMAX");
  if (model.routed_scaling_factor() != 1) {
    refuse("routed_scaling_factor", fmt::format("is {} with SOFTMAX", model.routed_scaling_factor()));
  }
  return Family::qwen3_moe;
}

void add_experts(ConfigText& config, const Model& model, Family family) {
  config.add(family == Family::dots1 ? "n_routed_experts" : "num_experts", model.num_experts());
  config.add("num_experts_per_tok", model.num_experts_per_tok());
  config.add("moe_intermediate_size", model.moe_intermediate_size());
  config.add("norm_topk_prob", model.norm_topk_prob() ? "true" : "false");
  if (family == Family::qwen3_moe) {
    config.add("decoder_sparse_step", model.decoder_sparse_step());
    config.add("mlp_only_layers", fmt::format("[{}]", fmt::join(model.mlp_only_layers(), ", ")));
    config.add("output_router_logits", model.output_router_logits() ? "true" : "false");
    if (model.has_router_aux_loss_coef()) config.add("router_aux_loss_coef", real(model.router_aux_loss_coef()));
    return;
  }
  const bool grouped = model.group_routing() != Model::NO_GROUPS;
  config.add("scoring_func", R"("sigmoid")");
  config.add("topk_method", R"("noaux_tc")");
  config.add("routed_scaling_factor", real(model.routed_scaling_factor()));
  config.add("n_group", grouped ? model.n_group() : 1);
  config.add("topk_group", grouped ? model.topk_group() : 1);
  config.add("n_shared_experts", 0U);
  config.add("first_k_dense_replace", *leading_dense_layers(model));
}

struct FamilyName {
  const char *architectures, *type;
};

FamilyName name_of(Family family) {
  switch (family) {
    case Family::qwen3: return {R"(["Qwen3ForCausalLM"])", R"("qwen3")"};
    case Family::qwen3_moe: return {R"(["Qwen3MoeForCausalLM"])", R"("qwen3_moe")"};
    case Family::dots1: break;
  }
  return {R"(["Dots1ForCausalLM"])", R"("dots1")"};
}

}  // namespace

std::string huggingface_config_text(const Model& model, SafetensorsType dtype) {
  ANANKE_CHECK(model.has_head_dim() && model.has_num_key_value_heads(), "the model is not resolved");
  const Family family = family_of(model);
  ConfigText config;
  config.add("architectures", name_of(family).architectures);
  config.add("model_type", name_of(family).type);
  config.add("torch_dtype", dtype == SafetensorsType::bf16 ? R"("bfloat16")" : R"("float32")");
  config.add("vocab_size", model.vocab_size());
  config.add("hidden_size", model.hidden_size());
  config.add("num_hidden_layers", model.num_hidden_layers());
  config.add("num_attention_heads", model.num_attention_heads());
  config.add("num_key_value_heads", model.num_key_value_heads());
  config.add("head_dim", model.head_dim());
  if (model.has_intermediate_size()) config.add("intermediate_size", model.intermediate_size());
  if (family != Family::qwen3) add_experts(config, model, family);
  config.add("hidden_act", R"("silu")");
  config.add("rms_norm_eps", real(model.rms_norm_eps()));
  config.add("rope_theta", real(model.rope_theta()));
  config.add("rope_parameters",
             fmt::format(R"({{"rope_type": "default", "rope_theta": {}}})", real(model.rope_theta())));
  if (model.has_max_position_embeddings()) config.add("max_position_embeddings", model.max_position_embeddings());
  config.add("tie_word_embeddings", model.tie_word_embeddings() ? "true" : "false");
  config.add("initializer_range", real(model.initializer_range()));
  config.add("attention_bias", "false");
  config.add("attention_dropout", "0.0");
  if (family == Family::dots1) config.add("sliding_window", "null");
  config.add("use_sliding_window", "false");
  config.add("use_cache", "true");
  return config.finish();
}

namespace {

constexpr std::int64_t piece_elements = std::int64_t{4} << 20;

// The folder under a temporary name beside its final one; removed unless it was committed.
class PartialFolder {
 public:
  explicit PartialFolder(const std::filesystem::path& output) {
    final_ = output.has_filename() ? output : output.parent_path();  // "folder/" is "folder"
    std::error_code error;
    if (std::filesystem::exists(final_, error) &&
        !(std::filesystem::is_directory(final_, error) && std::filesystem::is_empty(final_, error))) {
      fail(ErrorKind::config, "the output {} exists already; remove it or name another folder", final_.string());
    }
    remove_stale_partials(final_);
    path_ = partial_name(final_);
    std::filesystem::remove_all(path_, error);
    if (!std::filesystem::create_directories(path_, error)) {
      fail(ErrorKind::resource, "cannot make the folder {}: {}", path_.string(), error.message());
    }
  }
  ~PartialFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void commit() {
    commit_file(path_, final_);
    path_.clear();
  }

 private:
  std::filesystem::path final_, path_;
};

void write_text(const std::filesystem::path& path, const std::string& text) {
  ReplacedFile file(path);
  std::ofstream stream(file.partial(), std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) fail(ErrorKind::resource, "cannot write {}: {}", path.string(), std::strerror(errno));
  file.commit();
}

void carry(const CarriedFile& file, const std::filesystem::path& folder) {
  if (file.from.empty()) return write_text(folder / file.name, file.content);
  ReplacedFile copy(folder / file.name);
  std::error_code error;
  if (!std::filesystem::copy_file(file.from, copy.partial(), error)) {
    fail(ErrorKind::resource, "cannot copy {} to {}: {}", file.from.string(), copy.partial().string(), error.message());
  }
  copy.commit();
}

// One tensor of the folder.
struct Exported {
  std::string name;
  Shape shape;
  SafetensorsType dtype;
  const Parameter* source;  // null: zeros
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(shape.elements()) * element_bytes(dtype); }
};
using Tensors = std::vector<Exported>;

// What transformers' dots1 has and the model has not: shared experts without width; biases where there are none.
void add_dots1(const Model& model, SafetensorsType dtype, Tensors& tensors) {
  const std::int64_t hidden = model.hidden_size();
  for (int layer = 0; layer < static_cast<int>(model.num_hidden_layers()); ++layer) {
    if (!is_moe_layer(model, layer)) continue;
    const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
    tensors.push_back({mlp + "shared_experts.gate_proj.weight", {0, hidden}, dtype, nullptr});
    tensors.push_back({mlp + "shared_experts.up_proj.weight", {0, hidden}, dtype, nullptr});
    tensors.push_back({mlp + "shared_experts.down_proj.weight", {hidden, 0}, dtype, nullptr});
    if (model.e_score_correction_bias()) continue;
    tensors.push_back({mlp + "gate.e_score_correction_bias", {model.num_experts()}, SafetensorsType::f32, nullptr});
  }
}

Tensors tensors_of(const Model& model, const ParameterTable& table, SafetensorsType dtype) {
  Tensors tensors;
  for (const Parameter& parameter : table.parameters()) {
    tensors.push_back({parameter.name, parameter.shape, dtype, &parameter});
  }
  for (const Parameter& bias : table.buffers()) tensors.push_back({bias.name, bias.shape, SafetensorsType::f32, &bias});
  if (family_of(model) == Family::dots1) add_dots1(model, dtype, tensors);
  return tensors;
}

// In order, each shard filled until the next tensor would not fit.
std::vector<Tensors> shards_of(Tensors tensors, std::uint64_t shard_bytes) {
  std::vector<Tensors> shards(1);
  std::uint64_t bytes = 0;
  for (Exported& tensor : tensors) {
    const std::uint64_t own = tensor.bytes();
    if (!shards.back().empty() && bytes + own > shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(std::move(tensor));
    bytes += own;
  }
  return shards;
}

std::string shard_name(std::size_t number, std::size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", number + 1, count);
}

std::string index_text(const std::vector<Tensors>& shards, std::uint64_t bytes) {
  std::string map;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const Exported& tensor : shards[i]) {
      map += fmt::format("{}    {}: \"{}\"", map.empty() ? "" : ",\n", json_quoted(tensor.name),
                         shard_name(i, shards.size()));
    }
  }
  return fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{\n{}\n  }}\n}}\n", bytes, map);
}

void write_shard_file(const std::filesystem::path& path, const Tensors& tensors, const ReadParameter& read,
                      std::vector<float>& staging, const std::function<void(std::uint64_t)>& wrote) {
  std::vector<SafetensorsEntry> entries;
  for (const Exported& tensor : tensors) {
    SafetensorsEntry& entry = entries.emplace_back(SafetensorsEntry{tensor.name, tensor.dtype, {}});
    for (int i = 0; i < tensor.shape.rank(); ++i) entry.shape.push_back(tensor.shape[i]);
  }
  SafetensorsWriter file(path, std::move(entries));
  for (const Exported& tensor : tensors) {
    const std::int64_t elements = tensor.shape.elements();
    for (std::int64_t begin = 0; begin < elements; begin += piece_elements) {
      staging.assign(static_cast<std::size_t>(std::min(piece_elements, elements - begin)), 0.0F);
      if (tensor.source) read(*tensor.source, begin, staging);
      file.append(std::span<const float>(staging));
      wrote(staging.size() * element_bytes(tensor.dtype));
    }
  }
  file.finish();
}

}  // namespace

ExportSummary export_huggingface(const Model& model, const ExportOptions& options, const ReadParameter& read,
                                 const ExportProgress& progress) {
  ANANKE_CHECK(options.dtype != SafetensorsType::i32, "weights are no integers");
  const ParameterTable table(model);
  const std::vector<Tensors> shards = shards_of(tensors_of(model, table, options.dtype), options.shard_bytes);
  ExportSummary summary{0, shards.size(), 0};
  for (const Tensors& shard : shards) {
    summary.tensors += shard.size();
    for (const Exported& tensor : shard) summary.bytes += tensor.bytes();
  }

  PartialFolder folder(options.output);
  std::vector<float> staging;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    write_shard_file(folder.path() / shard_name(i, shards.size()), shards[i], read, staging, [&](std::uint64_t bytes) {
      done += bytes;
      if (progress) progress(done, summary.bytes);
    });
  }
  if (shards.size() > 1) write_text(folder.path() / "model.safetensors.index.json", index_text(shards, summary.bytes));
  write_text(folder.path() / "config.json", huggingface_config_text(model, options.dtype));
  for (const CarriedFile& file : options.files) carry(file, folder.path());
  folder.commit();
  return summary;
}

}  // namespace ananke
