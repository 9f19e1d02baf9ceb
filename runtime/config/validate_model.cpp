// Models: shapes, attention, routers and their groups.
#include "ananke/job.pb.h"
#include "runtime/config/validate.h"
#include "runtime/config/validate_parts.h"

namespace ananke {

std::uint32_t effective_num_key_value_heads(const Model& model) {
  return model.has_num_key_value_heads() ? model.num_key_value_heads() : model.num_attention_heads();
}

std::uint32_t effective_head_dim(const Model& model) {
  if (model.has_head_dim()) return model.head_dim();
  const std::uint32_t heads = model.num_attention_heads();
  return heads == 0 || model.hidden_size() % heads != 0 ? 0 : model.hidden_size() / heads;
}

// Layer i is MoE when (i + 1) % decoder_sparse_step == 0 and it is not in mlp_only_layers.
bool has_dense_layer(const Model& model) {
  return model.num_experts() == 0 || model.decoder_sparse_step() > 1 || model.mlp_only_layers_size() > 0;
}

bool has_moe_layer(const Model& model) {
  if (model.num_experts() == 0 || model.decoder_sparse_step() == 0) return false;
  const std::set<std::uint32_t> dense(model.mlp_only_layers().begin(), model.mlp_only_layers().end());
  std::uint64_t candidates = model.num_hidden_layers() / model.decoder_sparse_step();
  for (const std::uint32_t layer : dense) {
    const bool candidate =
        layer < model.num_hidden_layers() && (std::uint64_t{layer} + 1) % model.decoder_sparse_step() == 0;
    if (candidate) --candidates;
  }
  return candidates > 0;
}

Problems check_model(const Model& model) {
  Problems problems;
  const std::uint32_t heads = model.num_attention_heads();
  const std::uint32_t kv_heads = effective_num_key_value_heads(model);
  if (kv_heads != 0 && heads % kv_heads != 0) {
    add(&problems, "model.num_key_value_heads",
        "is {}, which does not divide num_attention_heads {}; every key/value head serves a whole number of query "
        "heads",
        kv_heads, heads);
  }
  if (!model.has_head_dim() && effective_head_dim(model) == 0) {
    add(&problems, "model.hidden_size", "is {}, no multiple of num_attention_heads {}; change one, or set head_dim",
        model.hidden_size(), heads);
  } else if (effective_head_dim(model) % 2 != 0) {
    add(&problems, model.has_head_dim() ? "model.head_dim" : "model.hidden_size",
        "gives a head_dim of {}, which is odd; RoPE turns pairs of elements, so make it even",
        effective_head_dim(model));
  }
  std::set<std::uint32_t> seen;
  for (int i = 0; i < model.mlp_only_layers_size(); ++i) {
    const std::uint32_t layer = model.mlp_only_layers(i);
    const std::string path = fmt::format("model.mlp_only_layers[{}]", i);
    if (layer >= model.num_hidden_layers()) {
      add(&problems, path, "is layer {}, but num_hidden_layers {} makes the last one {}", layer,
          model.num_hidden_layers(), model.num_hidden_layers() - 1);
    } else if (!seen.insert(layer).second) {
      add(&problems, path, "names layer {} a second time; keep one", layer);
    }
  }
  if (has_dense_layer(model) && !model.has_intermediate_size()) {
    add(&problems, "model.intermediate_size",
        "is missing, but some layers are dense (num_experts {}, decoder_sparse_step {}, {} mlp_only_layers); add the "
        "width "
        "of their MLP",
        model.num_experts(), model.decoder_sparse_step(), model.mlp_only_layers_size());
  }
  if (model.num_experts() == 0) return problems;
  constexpr std::uint64_t most_experts = 4'000'000;
  if (std::uint64_t{model.num_hidden_layers()} * model.num_experts() > most_experts) {
    add(&problems, "model.num_experts", "is {}, and {} layers make {} experts; at most {} are served",
        model.num_experts(), model.num_hidden_layers(), std::uint64_t{model.num_hidden_layers()} * model.num_experts(),
        most_experts);
  }
  if (!has_moe_layer(model)) {
    add(&problems, "model.num_experts",
        "is {}, but none of the {} layers is MoE (decoder_sparse_step {}, {} mlp_only_layers); "
        "set it to 0 or change those",
        model.num_experts(), model.num_hidden_layers(), model.decoder_sparse_step(), model.mlp_only_layers_size());
  }
  if (!model.has_num_experts_per_tok()) {
    add(&problems, "model.num_experts_per_tok",
        "is missing, but num_experts is {}; add how many of them a token visits", model.num_experts());
  } else if (model.num_experts_per_tok() > model.num_experts()) {
    add(&problems, "model.num_experts_per_tok", "is {}, more than num_experts {}; lower it",
        model.num_experts_per_tok(), model.num_experts());
  }
  if (!model.has_moe_intermediate_size()) {
    add(&problems, "model.moe_intermediate_size", "is missing, but num_experts is {}; add the width of an expert's MLP",
        model.num_experts());
  }
  append(&problems, check_router(model));
  return problems;
}

namespace {

// Of a grouped router whose groups are of equal size.
Problems check_choice_in_groups(const Model& model, std::uint32_t size) {
  Problems problems;
  const std::uint32_t k = model.num_experts_per_tok(), groups = model.n_group();
  if (model.group_routing() == Model::TOP_K_PER_GROUP) {
    if (k % groups != 0) {
      add(&problems, "model.num_experts_per_tok",
          "is {}, no multiple of n_group {}; TOP_K_PER_GROUP takes the same number from every group: set it to {}", k,
          groups, multiples_near(k, groups));
    } else if (k / groups > size) {
      add(&problems, "model.num_experts_per_tok",
          "is {}, {} from each of {} groups, but a group has {} experts; lower it", k, k / groups, groups, size);
    }
    return problems;
  }
  if (size < 2) {
    add(&problems, "model.n_group",
        "is {} of {} experts, so that a group has {}; a group's value is the sum of its two best experts: lower "
        "n_group",
        groups, model.num_experts(), size);
  }
  if (!model.has_topk_group()) {
    add(&problems, "model.topk_group", "is missing; GROUPS_LIMITED_TOP_K needs how many of the {} groups are kept",
        groups);
  } else if (model.topk_group() > groups) {
    add(&problems, "model.topk_group", "is {}, more than n_group {}; lower it", model.topk_group(), groups);
  } else if (k > std::uint64_t{model.topk_group()} * size) {
    add(&problems, "model.num_experts_per_tok",
        "is {}, but topk_group {} groups of {} experts have {}; lower it or keep more groups", k, model.topk_group(),
        size, model.topk_group() * size);
  }
  return problems;
}

Problems check_groups(const Model& model) {
  Problems problems;
  const std::uint32_t groups = model.n_group();
  const bool limited = model.group_routing() == Model::GROUPS_LIMITED_TOP_K;
  if (!limited && model.has_topk_group()) {
    add(&problems, "model.topk_group",
        "is {}, but group_routing is {}; only GROUPS_LIMITED_TOP_K keeps groups: remove it", model.topk_group(),
        Model::GroupRouting_Name(model.group_routing()));
  }
  if (model.group_routing() == Model::NO_GROUPS) {
    if (groups > 1) {
      add(&problems, "model.n_group",
          "is {}, but group_routing is NO_GROUPS; set it to GROUPS_LIMITED_TOP_K or TOP_K_PER_GROUP, or remove n_group",
          groups);
    }
  } else if (groups < 2) {
    add(&problems, "model.n_group", "is {}, but group_routing is {}; set how many groups the {} experts form", groups,
        Model::GroupRouting_Name(model.group_routing()), model.num_experts());
  } else if (model.num_experts() % groups != 0) {
    add(&problems, "model.n_group", "is {}, which does not divide num_experts {}; groups are of equal size", groups,
        model.num_experts());
  } else if (model.has_num_experts_per_tok()) {
    append(&problems, check_choice_in_groups(model, model.num_experts() / groups));
  }
  return problems;
}

}  // namespace

Problems check_router(const Model& model) {
  Problems problems = check_groups(model);
  for (int i = 0; i < model.router_bias_fixed_layers_size(); ++i) {
    const std::uint32_t layer = model.router_bias_fixed_layers(i);
    const std::string path = fmt::format("model.router_bias_fixed_layers[{}]", i);
    if (!model.e_score_correction_bias()) {
      add(&problems, path, "is layer {}, but e_score_correction_bias is not set, so no router has a bias; set it",
          layer);
    } else if (layer >= model.num_hidden_layers()) {
      add(&problems, path, "is layer {}, but num_hidden_layers {} makes the last one {}", layer,
          model.num_hidden_layers(), model.num_hidden_layers() - 1);
    }
  }
  return problems;
}

Problems check_positions(const Model& model, const Training& training) {
  Problems problems;
  if (model.has_max_position_embeddings() && training.sequence_length() > model.max_position_embeddings()) {
    add(&problems, "training.sequence_length",
        "is {}, longer than model.max_position_embeddings {}; shorten the rows or raise that",
        training.sequence_length(), model.max_position_embeddings());
  }
  return problems;
}

}  // namespace ananke
