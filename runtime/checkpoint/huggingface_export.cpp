#include "runtime/checkpoint/huggingface_export.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
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

void add_experts(ConfigText& config, const Model& model) {
  config.add("num_experts", model.num_experts());
  config.add("num_experts_per_tok", model.num_experts_per_tok());
  config.add("moe_intermediate_size", model.moe_intermediate_size());
  config.add("norm_topk_prob", model.norm_topk_prob() ? "true" : "false");
  config.add("decoder_sparse_step", model.decoder_sparse_step());
  config.add("mlp_only_layers", fmt::format("[{}]", fmt::join(model.mlp_only_layers(), ", ")));
  config.add("output_router_logits", "false");
}

}  // namespace

std::string huggingface_config_text(const Model& model, SafetensorsType dtype) {
  ANANKE_CHECK(model.has_head_dim() && model.has_num_key_value_heads(), "the model is not resolved");
  const bool moe = model.num_experts() > 0;
  ConfigText config;
  config.add("architectures", moe ? R"(["Qwen3MoeForCausalLM"])" : R"(["Qwen3ForCausalLM"])");
  config.add("model_type", moe ? R"("qwen3_moe")" : R"("qwen3")");
  config.add("torch_dtype", dtype == SafetensorsType::bf16 ? R"("bfloat16")" : R"("float32")");
  config.add("vocab_size", model.vocab_size());
  config.add("hidden_size", model.hidden_size());
  config.add("num_hidden_layers", model.num_hidden_layers());
  config.add("num_attention_heads", model.num_attention_heads());
  config.add("num_key_value_heads", model.num_key_value_heads());
  config.add("head_dim", model.head_dim());
  if (model.has_intermediate_size()) config.add("intermediate_size", model.intermediate_size());
  if (moe) add_experts(config, model);
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

using Parameters = std::vector<const Parameter*>;

std::uint64_t bytes_of(const Parameter& parameter, SafetensorsType dtype) {
  return static_cast<std::uint64_t>(parameter.shape.elements()) * element_bytes(dtype);
}

// In order, each shard filled until the next tensor would not fit.
std::vector<Parameters> shards_of(const ParameterTable& table, const ExportOptions& options) {
  std::vector<Parameters> shards(1);
  std::uint64_t bytes = 0;
  for (const Parameter& parameter : table.parameters()) {
    const std::uint64_t own = bytes_of(parameter, options.dtype);
    if (!shards.back().empty() && bytes + own > options.shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(&parameter);
    bytes += own;
  }
  return shards;
}

std::string shard_name(std::size_t number, std::size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", number + 1, count);
}

std::string index_text(const std::vector<Parameters>& shards, std::uint64_t bytes) {
  std::string map;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const Parameter* parameter : shards[i]) {
      map += fmt::format("{}    {}: \"{}\"", map.empty() ? "" : ",\n", json_quoted(parameter->name),
                         shard_name(i, shards.size()));
    }
  }
  return fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{\n{}\n  }}\n}}\n", bytes, map);
}

void write_shard_file(const std::filesystem::path& path, const Parameters& parameters, SafetensorsType dtype,
                      const ReadParameter& read, std::vector<float>& staging,
                      const std::function<void(std::uint64_t)>& wrote) {
  std::vector<SafetensorsEntry> entries;
  for (const Parameter* parameter : parameters) {
    SafetensorsEntry& entry = entries.emplace_back(SafetensorsEntry{parameter->name, dtype, {}});
    for (int i = 0; i < parameter->shape.rank(); ++i) entry.shape.push_back(parameter->shape[i]);
  }
  SafetensorsWriter file(path, std::move(entries));
  for (const Parameter* parameter : parameters) {
    const std::int64_t elements = parameter->shape.elements();
    for (std::int64_t begin = 0; begin < elements; begin += piece_elements) {
      staging.resize(static_cast<std::size_t>(std::min(piece_elements, elements - begin)));
      read(*parameter, begin, staging);
      file.append(std::span<const float>(staging));
      wrote(staging.size() * element_bytes(dtype));
    }
  }
  file.finish();
}

}  // namespace

ExportSummary export_huggingface(const Model& model, const ExportOptions& options, const ReadParameter& read,
                                 const ExportProgress& progress) {
  ANANKE_CHECK(options.dtype != SafetensorsType::i32, "weights are no integers");
  const ParameterTable table(model);
  const std::vector<Parameters> shards = shards_of(table, options);
  ExportSummary summary{table.parameters().size(), shards.size(), 0};
  for (const Parameter& parameter : table.parameters()) summary.bytes += bytes_of(parameter, options.dtype);

  PartialFolder folder(options.output);
  std::vector<float> staging;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    write_shard_file(folder.path() / shard_name(i, shards.size()), shards[i], options.dtype, read, staging,
                     [&](std::uint64_t bytes) {
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
