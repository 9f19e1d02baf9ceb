#include "runtime/model/parameter_table.h"

#include <algorithm>

#include "ananke/model.pb.h"
#include "runtime/base/error.h"

namespace ananke {

const char* name_of(ParameterKind kind) noexcept {
  switch (kind) {
    case ParameterKind::embedding: return "embedding";
    case ParameterKind::matrix: return "matrix";
    case ParameterKind::norm: return "norm";
    case ParameterKind::router: return "router";
    case ParameterKind::expert: return "expert";
    case ParameterKind::head: return "head";
  }
  return "unknown";
}

const char* name_of(UnitKind kind) noexcept {
  switch (kind) {
    case UnitKind::embedding: return "embedding";
    case UnitKind::dense: return "dense";
    case UnitKind::experts: return "experts";
    case UnitKind::head: return "head";
  }
  return "unknown";
}

bool is_moe_layer(const Model& model, int layer) {
  const auto& dense = model.mlp_only_layers();
  return model.num_experts() > 0 && (static_cast<std::uint32_t>(layer) + 1) % model.decoder_sparse_step() == 0 &&
         std::find(dense.begin(), dense.end(), static_cast<std::uint32_t>(layer)) == dense.end();
}

ParameterTable::ParameterTable(const Model& model) {
  ANANKE_CHECK(model.has_num_key_value_heads() && model.has_head_dim(), "the model's defaults are not filled in");
  const std::int64_t vocabulary = model.vocab_size(), hidden = model.hidden_size();
  const int layers = static_cast<int>(model.num_hidden_layers());

  const int embedding = add_unit("embedding", UnitKind::embedding);
  add("model.embed_tokens.weight", {vocabulary, hidden}, ParameterKind::embedding, embedding);
  blocks_.push_back({BlockKind::embedding, -1, false, {embedding}});
  for (int layer = 0; layer < layers; ++layer) add_layer(model, layer);
  const int head = add_unit("head", UnitKind::head);
  add("model.norm.weight", {hidden}, ParameterKind::norm, head);
  if (model.tie_word_embeddings()) {
    blocks_.push_back({BlockKind::head, -1, false, {embedding, head}});
  } else {
    add("lm_head.weight", {vocabulary, hidden}, ParameterKind::head, head);
    blocks_.push_back({BlockKind::head, -1, false, {head}});
  }

  const std::int64_t unused = model.num_experts() > 0 ? model.num_experts() - model.num_experts_per_tok() : 0;
  std::int64_t idle = 0;  // parameters of the experts a token does not visit
  for (const Parameter& parameter : parameters_) {
    total_ += parameter.shape.elements();
    if (parameter.expert >= 0 && parameter.expert < unused) idle += parameter.shape.elements();
  }
  active_ = total_ - idle;
  // A tied matrix multiplies as the head, an untied embedding only looks up.
  multiplied_ = active_ - (model.tie_word_embeddings() ? 0 : vocabulary * hidden);
  attention_flops_per_context_ = 6.0 * layers * model.num_attention_heads() * model.head_dim();
}

void ParameterTable::add_layer(const Model& model, int layer) {
  const std::int64_t hidden = model.hidden_size(), d = model.head_dim();
  const std::int64_t query = model.num_attention_heads() * d, key = model.num_key_value_heads() * d;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const bool moe = is_moe_layer(model, layer);
  const int dense = add_unit(fmt::format("layer.{}.dense", layer), UnitKind::dense);
  const auto here = [&](const std::string& name, Shape shape, ParameterKind kind) {
    add(prefix + name, shape, kind, dense, layer);
  };
  here("input_layernorm.weight", {hidden}, ParameterKind::norm);
  here("self_attn.q_proj.weight", {query, hidden}, ParameterKind::matrix);
  here("self_attn.k_proj.weight", {key, hidden}, ParameterKind::matrix);
  here("self_attn.v_proj.weight", {key, hidden}, ParameterKind::matrix);
  here("self_attn.o_proj.weight", {hidden, query}, ParameterKind::matrix);
  here("self_attn.q_norm.weight", {d}, ParameterKind::norm);
  here("self_attn.k_norm.weight", {d}, ParameterKind::norm);
  here("post_attention_layernorm.weight", {hidden}, ParameterKind::norm);
  std::vector<int> units = {dense};
  if (moe) {
    const std::int64_t width = model.moe_intermediate_size();
    here("mlp.gate.weight", {model.num_experts(), hidden}, ParameterKind::router);
    if (model.e_score_correction_bias()) {
      buffers_.push_back(
          {prefix + "mlp.gate.e_score_correction_bias", {model.num_experts()}, ParameterKind::router, -1, layer, -1});
    }
    const int experts = add_unit(fmt::format("layer.{}.experts", layer), UnitKind::experts);
    units.push_back(experts);
    for (int e = 0; e < static_cast<int>(model.num_experts()); ++e) {
      const std::string expert = fmt::format("{}mlp.experts.{}.", prefix, e);
      add(expert + "gate_proj.weight", {width, hidden}, ParameterKind::expert, experts, layer, e);
      add(expert + "up_proj.weight", {width, hidden}, ParameterKind::expert, experts, layer, e);
      add(expert + "down_proj.weight", {hidden, width}, ParameterKind::expert, experts, layer, e);
    }
  } else {
    const std::int64_t width = model.intermediate_size();
    here("mlp.gate_proj.weight", {width, hidden}, ParameterKind::matrix);
    here("mlp.up_proj.weight", {width, hidden}, ParameterKind::matrix);
    here("mlp.down_proj.weight", {hidden, width}, ParameterKind::matrix);
  }
  blocks_.push_back({BlockKind::layer, layer, moe, std::move(units)});
}

int ParameterTable::add_unit(std::string name, UnitKind kind) {
  units_.push_back({std::move(name), kind, {}});
  return static_cast<int>(units_.size()) - 1;
}

void ParameterTable::add(std::string name, Shape shape, ParameterKind kind, int unit, int layer, int expert) {
  units_[static_cast<std::size_t>(unit)].parameters.push_back(static_cast<int>(parameters_.size()));
  parameters_.push_back({std::move(name), shape, kind, unit, layer, expert});
}

int ParameterTable::find(std::string_view name) const noexcept {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

double ParameterTable::flops_per_token(std::int64_t context) const noexcept {
  return 6.0 * static_cast<double>(multiplied_) + attention_flops_per_context_ * static_cast<double>(context);
}

}  // namespace ananke
