#include "runtime/config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <limits>
#include <map>
#include <regex>
#include <set>

#include "ananke/job.pb.h"

namespace ananke {
namespace {

template <class... Args>
void add(Problems* problems, std::string path, fmt::format_string<Args...> text, Args&&... args) {
  problems->push_back({std::move(path), fmt::format(text, std::forward<Args>(args)...)});
}

void append(Problems* all, Problems more) { all->insert(all->end(), more.begin(), more.end()); }

// The multiple of `unit` nearest below and above, for advice: "6 or 8".
std::string multiples_near(std::uint64_t value, std::uint64_t unit) {
  const std::uint64_t below = value / unit * unit;
  return below == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", below, below + unit);
}

// The largest divisor of `number` that is no larger than `limit`.
std::uint64_t divisor_up_to(std::uint64_t limit, std::uint64_t number) {
  std::uint64_t best = 1;
  for (std::uint64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    for (const std::uint64_t divisor : {i, number / i}) {
      if (divisor <= limit) best = std::max(best, divisor);
    }
  }
  return best;
}

constexpr std::size_t longest_set_name = 64;

// Fits into a line of the console, a column's title and a file's name.
bool is_set_name(std::string_view name) {
  return !name.empty() && name.size() <= longest_set_name && std::ranges::all_of(name, [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.');
  });
}

}  // namespace

std::uint32_t effective_num_key_value_heads(const Model& model) {
  return model.has_num_key_value_heads() ? model.num_key_value_heads() : model.num_attention_heads();
}

std::uint32_t effective_head_dim(const Model& model) {
  if (model.has_head_dim()) return model.head_dim();
  const std::uint32_t heads = model.num_attention_heads();
  return heads == 0 || model.hidden_size() % heads != 0 ? 0 : model.hidden_size() / heads;
}

std::uint64_t effective_shard(const Mesh& mesh, std::uint64_t ranks) {
  if (mesh.shard() != 0) return mesh.shard();
  if (mesh.expert_shard() != 0) return std::uint64_t{mesh.expert_shard()} * mesh.expert();
  return mesh.replicate() == 0 || ranks % mesh.replicate() != 0 ? 0 : ranks / mesh.replicate();
}

std::uint64_t ranks_of(const Mesh& mesh) {
  const std::uint64_t shard = effective_shard(mesh, 0);
  return mesh.replicate() * (shard != 0 ? shard : mesh.expert());
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

Problems check_mesh(const Mesh& mesh, std::uint32_t ranks) {
  Problems problems;
  const std::uint64_t experts = mesh.expert(), product = mesh.expert_shard() * experts;
  if (mesh.shard() != 0 && mesh.expert_shard() != 0 && mesh.shard() != product) {
    add(&problems, "mesh.expert_shard",
        "is {}, and expert_shard {} x expert {} makes a shard of {}, but mesh.shard is {}; leave one of them out or "
        "make "
        "them agree",
        mesh.expert_shard(), mesh.expert_shard(), experts, product, mesh.shard());
    return problems;
  }
  const std::uint64_t shard = effective_shard(mesh, ranks);
  if (mesh.shard() == 0 && mesh.expert_shard() != 0) {
    if (mesh.replicate() * shard != ranks) {
      add(&problems, "mesh.expert_shard",
          "is {}, and replicate {} x expert_shard {} x expert {} makes {} ranks, but the job has {}; change the mesh "
          "or "
          "--ranks",
          mesh.expert_shard(), mesh.replicate(), mesh.expert_shard(), experts, mesh.replicate() * shard, ranks);
    }
  } else if (mesh.shard() == 0) {
    if (shard == 0) {
      add(&problems, "mesh.replicate", "is {}, which does not divide the {} ranks; change it or --ranks",
          mesh.replicate(), ranks);
    }
  } else if (mesh.replicate() * shard != ranks) {
    add(&problems, "mesh.shard",
        "is {}, and replicate {} x shard {} makes {} ranks, but the job has {}; change the mesh or --ranks", shard,
        mesh.replicate(), shard, mesh.replicate() * shard, ranks);
  }
  if (problems.empty() && shard % experts != 0) {
    add(&problems, "mesh.expert",
        "is {}, which does not divide the shard axis of {} ranks ({} ranks / replicate {}); set it to a divisor, or "
        "shard "
        "to {}",
        experts, shard, ranks, mesh.replicate(), multiples_near(shard, experts));
  }
  return problems;
}

Problems check_expert_axis(const Mesh& mesh, const Model& model) {
  Problems problems;
  if (mesh.expert() > 1 && !has_moe_layer(model)) {
    add(&problems, "mesh.expert",
        "is {}, but none of the model's {} layers has experts (num_experts {}); set it to 1, and all {} ranks share "
        "the "
        "dense parameters as before",
        mesh.expert(), model.num_hidden_layers(), model.num_experts(), mesh.expert());
  }
  return problems;
}

// `microbatches`: of a rank in a step.
Problems check_gathers(const Training& training, std::uint32_t ranks, std::uint64_t microbatches) {
  Problems problems;
  const std::uint64_t asked = training.microbatches_per_gather();
  if (asked == 0 || microbatches % asked == 0) return problems;
  add(&problems, "training.microbatches_per_gather",
      "is {}, no divisor of the {} that each of {} ranks has in a step (rows_per_step {}, rows_per_microbatch {}); set "
      "it "
      "to {}, or to 0 for all of them",
      asked, microbatches == 1 ? "1 microbatch" : fmt::format("{} microbatches", microbatches), ranks,
      training.rows_per_step(),
      training.rows_per_microbatch() == 0 ? training.rows_per_step() / ranks : training.rows_per_microbatch(),
      divisor_up_to(asked, microbatches));
  return problems;
}

Problems check_rows(const Training& training, std::uint32_t ranks) {
  Problems problems;
  const std::uint32_t rows = training.rows_per_step();
  const std::uint64_t unit = std::uint64_t{ranks} * std::max(training.rows_per_microbatch(), 1u);
  if (rows % ranks != 0) {
    add(&problems, "training.rows_per_step", "is {}, no multiple of the {} ranks that share its rows; set it to {}",
        rows, ranks, multiples_near(rows, ranks));
  } else if (rows % unit != 0) {
    add(&problems, "training.rows_per_microbatch",
        "is {}, but each of {} ranks has {} rows of rows_per_step {}, no multiple of it; set rows_per_step to {}, or "
        "rows_per_microbatch to a divisor of {}",
        training.rows_per_microbatch(), ranks, rows / ranks, rows, multiples_near(rows, unit), rows / ranks);
  } else {
    append(&problems, check_gathers(training, ranks, training.rows_per_microbatch() == 0 ? 1 : rows / unit));
  }
  return problems;
}

Problems check_microbatches(const Training& training, const Model& model, std::uint32_t ranks) {
  Problems problems;
  const std::uint64_t rows = training.rows_per_step() / ranks, length = training.sequence_length();
  const std::uint64_t asked = training.rows_per_microbatch(), each = asked == 0 ? rows : asked;
  if (rows == 0 || each == 0 || rows % each != 0) return problems;  // check_rows says so
  constexpr std::uint64_t most_tokens = std::numeric_limits<std::int32_t>::max(), most_layers = 4'000'000;
  const std::uint64_t microbatches = rows / each, layers = model.num_hidden_layers();
  if (each * length > most_tokens) {
    add(&problems, "training.rows_per_microbatch",
        "is {}, and {} rows of {} tokens make a microbatch of {}; at most {} are served: set it to {}", asked, each,
        length, each * length, most_tokens, divisor_up_to(most_tokens / length, rows));
  } else if (microbatches * layers > most_layers) {
    add(&problems, "training.rows_per_microbatch",
        "is {}, and the {} rows that each of {} ranks has in a step make {} microbatches of {} layers; a step has at "
        "most {} of both multiplied: raise it, or use more ranks",
        asked, rows, ranks, microbatches, layers, most_layers);
  }
  return problems;
}

Problems check_learning_rate(const LearningRate& rate, const Training& training) {
  Problems problems;
  const std::uint64_t total = rate.total_steps() != 0 ? rate.total_steps() : training.steps();
  const char* what = rate.total_steps() != 0 ? "learning_rate.total_steps" : "training.steps";
  if (total < training.steps()) {
    add(&problems, "learning_rate.total_steps", "is {}, less than training.steps {}; raise it, or leave it out", total,
        training.steps());
  }
  const bool decays = rate.shape() == LearningRate::WARMUP_STABLE_DECAY;
  if (!decays && rate.decay_steps() != 0) {
    add(&problems, "learning_rate.decay_steps",
        "is {}, but only shape WARMUP_STABLE_DECAY has them, not {}; remove it or change "
        "the shape",
        rate.decay_steps(), LearningRate::Shape_Name(rate.shape()));
  } else if (std::uint64_t{rate.warmup_steps()} + rate.decay_steps() > total) {
    add(&problems, "learning_rate.warmup_steps",
        "{} + decay_steps {} are {}, more than the {} steps of {}; shorten them", rate.warmup_steps(),
        rate.decay_steps(), std::uint64_t{rate.warmup_steps()} + rate.decay_steps(), total, what);
  }
  return problems;
}

Problems check_data(const Data& data, const Model& model) {
  Problems problems;
  const bool stored = !data.tokens().empty();
  if (stored == data.has_generated()) {
    add(&problems, "data", "has {} of tokens and generated; give exactly one: tokens: \"FILE.h5\" or generated {{ }}",
        stored ? "both" : "none");
  }
  if (data.has_generated()) {
    const GeneratedTokens& made = data.generated();
    if (made.longest() < made.shortest()) {
      add(&problems, "data.generated.longest", "is {}, less than shortest {}; swap or change them", made.longest(),
          made.shortest());
    }
    if (made.branches() > model.vocab_size()) {
      add(&problems, "data.generated.branches", "is {}, more than model.vocab_size {}; lower it", made.branches(),
          model.vocab_size());
    }
  }
  return problems;
}

Problems check_evaluation(const Evaluation& evaluation, const Data& data) {
  Problems problems;
  std::map<std::string, int> places;
  for (int i = 0; i < evaluation.held_out_size(); ++i) {
    const HeldOut& set = evaluation.held_out(i);
    const std::string path = fmt::format("evaluation.held_out[{}]", i);
    const auto [place, is_new] = places.try_emplace(set.name(), i);
    if (!is_new) {
      add(&problems, path + ".name", "is '{}', the name of evaluation.held_out[{}]; give each set one of its own",
          set.name(), place->second);
    }
    if (!is_set_name(set.name())) {
      add(&problems, path + ".name",
          "is '{}', which is no name for a set; use letters, digits and \"-_.\", at most {} of them", set.name(),
          longest_set_name);
    }
    const bool stored = !set.tokens().empty(), generated = set.generated_documents() != 0;
    if (stored == generated) {
      add(&problems, path, "('{}') has {} of tokens and generated_documents; give exactly one", set.name(),
          stored ? "both" : "none");
    } else if (generated && !data.has_generated()) {
      add(&problems, path + ".generated_documents",
          "is {}, but data.generated is not set; name a held-out store instead: tokens: \"FILE.h5\"",
          set.generated_documents());
    }
  }
  return problems;
}

Problems check_training(const Training& training) {
  Problems problems;
  if (!training.record_routing().empty() && !training.replay_routing().empty()) {
    add(&problems, "training.replay_routing", "is '{}' while record_routing is '{}'; a run does one or the other",
        training.replay_routing(), training.record_routing());
  }
  if (training.force_balanced_routing() && !training.replay_routing().empty()) {
    add(&problems, "training.force_balanced_routing",
        "is true while replay_routing is '{}'; a run takes its routing from one of the two", training.replay_routing());
  }
  return problems;
}

Problems check_optimizer_rules(const Job& job) {
  Problems problems;
  constexpr std::size_t longest = 1000;  // std::regex goes down the stack with every parenthesis
  for (int i = 0; i < job.optimizer_size(); ++i) {
    if (const std::size_t bytes = job.optimizer(i).match().size(); bytes > longest) {
      add(&problems, fmt::format("optimizer[{}].match", i), "has {} bytes; at most {} are read", bytes, longest);
      continue;
    }
    try {
      const std::regex expression(job.optimizer(i).match());
    } catch (const std::regex_error& error) {
      add(&problems, fmt::format("optimizer[{}].match", i), "is '{}', no regular expression: {}",
          job.optimizer(i).match(), error.what());
    }
  }
  return problems;
}

Problems check_job(const Job& job, std::uint32_t ranks) {
  Problems problems;
  append(&problems, check_model(job.model()));
  append(&problems, check_positions(job.model(), job.training()));
  append(&problems, check_mesh(job.mesh(), ranks));
  append(&problems, check_expert_axis(job.mesh(), job.model()));
  append(&problems, check_rows(job.training(), ranks));
  append(&problems, check_microbatches(job.training(), job.model(), ranks));
  append(&problems, check_learning_rate(job.learning_rate(), job.training()));
  append(&problems, check_data(job.data(), job.model()));
  append(&problems, check_evaluation(job.evaluation(), job.data()));
  append(&problems, check_training(job.training()));
  append(&problems, check_optimizer_rules(job));
  return problems;
}

std::vector<std::string> remarks_on(const Job& job) {
  std::vector<std::string> remarks;
  const std::uint32_t axis = job.mesh().expert(), experts = job.model().num_experts();
  if (axis > experts && axis > 1) {
    remarks.push_back(fmt::format(
        "mesh.expert is {}, more than the {} experts of a layer: {} of every {} ranks hold none and compute only the "
        "dense part; an expert axis of at most {} uses all",
        axis, experts, axis - experts, axis, experts));
  } else if (axis > 1 && experts % axis != 0) {
    remarks.push_back(fmt::format(
        "mesh.expert is {}, and {} experts do not divide evenly: ranks hold {} or {} of them, and those with more have "
        "more to compute",
        axis, experts, experts / axis, experts / axis + 1));
  }
  const Model& model = job.model();
  if (model.group_routing() != Model::NO_GROUPS && axis > 1 && model.n_group() % axis != 0) {
    remarks.push_back(fmt::format(
        "mesh.expert is {} and model.n_group {}: groups of experts lie across ranks, so that they limit the "
        "ranks a token reaches, and even out what ranks get, less than they could; an expert axis that "
        "divides n_group keeps them whole",
        axis, model.n_group()));
  }
  if (job.training().force_balanced_routing()) {
    remarks.push_back(
        "training.force_balanced_routing is true: tokens are dealt to experts in turn, whatever the routers say. Times "
        "are those of a balanced model, weights and losses those of none");
  }
  return remarks;
}

Problems check_files(const Job& job) {
  namespace fs = std::filesystem;
  Problems problems;
  std::error_code ignored;
  const auto must_exist = [&](const std::string& path, const std::string& file, const char* advice) {
    if (file.empty() || fs::is_regular_file(file, ignored)) return;
    add(&problems, path, "is {}, which {}; {}", file, fs::exists(file, ignored) ? "is no file" : "does not exist",
        advice);
  };
  must_exist("data.tokens", job.data().tokens(), "`ananke data import` writes one");
  for (int i = 0; i < job.evaluation().held_out_size(); ++i) {
    must_exist(fmt::format("evaluation.held_out[{}].tokens", i), job.evaluation().held_out(i).tokens(),
               "`ananke data import` writes one");
  }
  must_exist("training.replay_routing", job.training().replay_routing(), "a run with record_routing writes one");
  if (fs::exists(job.run_dir(), ignored) && !fs::is_directory(job.run_dir(), ignored)) {
    add(&problems, "run_dir", "is {}, which exists and is no folder; name another", job.run_dir());
  }
  return problems;
}

}  // namespace ananke
