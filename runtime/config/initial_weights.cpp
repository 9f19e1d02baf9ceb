#include <fmt/format.h>

#include <set>

#include "ananke/job.pb.h"
#include "runtime/base/error.h"
#include "runtime/checkpoint/huggingface.h"
#include "runtime/config/validate.h"

namespace ananke {
namespace {

class Comparison {
 public:
  template <class Value>
  void add(const char* field, const Value& folder, const Value& job) {
    if (folder != job) text_ += fmt::format("\n    {}: {} in the folder, {} in the job", field, folder, job);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string moe_layers(const Model& model) {
  std::string text;
  for (int layer = 0; layer < static_cast<int>(model.num_hidden_layers()); ++layer) {
    if (is_moe_layer(model, layer)) text += fmt::format("{}{}", text.empty() ? "" : ", ", layer);
  }
  return "[" + text + "]";
}

void add_router(Comparison& fields, const Model& folder, const Model& job) {
  fields.add("norm_topk_prob", folder.norm_topk_prob(), job.norm_topk_prob());
  fields.add("scoring_func", Model::ScoringFunc_Name(folder.scoring_func()),
             Model::ScoringFunc_Name(job.scoring_func()));
  fields.add("routed_scaling_factor", folder.routed_scaling_factor(), job.routed_scaling_factor());
  fields.add("group_routing", Model::GroupRouting_Name(folder.group_routing()),
             Model::GroupRouting_Name(job.group_routing()));
  if (folder.group_routing() == Model::NO_GROUPS || folder.group_routing() != job.group_routing()) return;
  fields.add("n_group", folder.n_group(), job.n_group());
  fields.add("topk_group", folder.topk_group(), job.topk_group());
}

// What decides the mathematics; not how the weights were initialised, nor how long rows may be.
std::string differences(const Model& folder, const Model& job) {
  Comparison fields;
  fields.add("vocab_size", folder.vocab_size(), job.vocab_size());
  fields.add("hidden_size", folder.hidden_size(), job.hidden_size());
  fields.add("num_hidden_layers", folder.num_hidden_layers(), job.num_hidden_layers());
  fields.add("num_attention_heads", folder.num_attention_heads(), job.num_attention_heads());
  fields.add("num_key_value_heads", effective_num_key_value_heads(folder), effective_num_key_value_heads(job));
  fields.add("head_dim", effective_head_dim(folder), effective_head_dim(job));
  if (has_dense_layer(folder) && has_dense_layer(job)) {
    fields.add("intermediate_size", folder.intermediate_size(), job.intermediate_size());
  }
  if (has_moe_layer(folder) && has_moe_layer(job)) {
    fields.add("num_experts", folder.num_experts(), job.num_experts());
    fields.add("num_experts_per_tok", folder.num_experts_per_tok(), job.num_experts_per_tok());
    fields.add("moe_intermediate_size", folder.moe_intermediate_size(), job.moe_intermediate_size());
    add_router(fields, folder, job);
  }
  // A folder without biases is one whose biases are 0; they may begin to move.
  if (folder.e_score_correction_bias() && !job.e_score_correction_bias()) {
    fields.add("e_score_correction_bias", true, false);
  }
  if (folder.num_hidden_layers() == job.num_hidden_layers()) {
    fields.add("layers with experts (decoder_sparse_step, mlp_only_layers)", moe_layers(folder), moe_layers(job));
  }
  fields.add("rms_norm_eps", folder.rms_norm_eps(), job.rms_norm_eps());
  fields.add("rope_theta", folder.rope_theta(), job.rope_theta());
  fields.add("tie_word_embeddings", folder.tie_word_embeddings(), job.tie_word_embeddings());
  return fields.text();
}

}  // namespace

Problems check_initial_weights(const Job& job) {
  const std::string& folder = job.initial_weights();
  if (folder.empty()) return {};
  try {
    const Model model = read_huggingface_config(folder);
    if (const std::string text = differences(model, job.model()); !text.empty()) {
      return {{"initial_weights", fmt::format("is {}, of another model:{}\n    `ananke import {} --print-model` prints "
                                              "the model block that fits",
                                              folder, text, folder)}};
    }
    const ParameterTable table(model);
    const HuggingfaceWeights weights(folder, model, table);
  } catch (const Error& error) {
    return {{"initial_weights", fmt::format("is {}, which cannot be used: {}; to resume without it: --set "
                                            "initial_weights=",
                                            folder, error.what())}};
  }
  return {};
}

}  // namespace ananke
