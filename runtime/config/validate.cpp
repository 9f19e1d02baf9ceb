#include "runtime/config/validate.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "ananke/job.pb.h"
#include "runtime/config/validate_parts.h"

namespace ananke {
namespace {

constexpr std::size_t longest_set_name = 64;

// Fits into a line of the console, a column's title and a file's name.
bool is_set_name(std::string_view name) {
  return !name.empty() && name.size() <= longest_set_name && std::ranges::all_of(name, [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.');
  });
}

}  // namespace

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
  if (training.weights() == Training::BF16 && training.compute() != Training::BF16) {
    add(&problems, "training.weights",
        "is BF16, but training.compute is {}: weights in bf16 are for jobs that compute in it; set training.compute: "
        "BF16, or remove training.weights",
        Training::Compute_Name(training.compute()));
  }
  return problems;
}

Problems check_checkpoint(const Checkpointing& checkpoint) {
  Problems problems;
  if (checkpoint.none() && checkpoint.every_steps() > 0) {
    add(&problems, "checkpoint.every_steps", "is {}, but checkpoint.none is set: remove one of the two",
        checkpoint.every_steps());
  }
  return problems;
}

Problems check_telemetry(const Telemetry& telemetry, const Training& training) {
  Problems problems;
  std::set<std::uint32_t> named;
  for (int i = 0; i < telemetry.trace_steps_size(); ++i) {
    const std::uint32_t step = telemetry.trace_steps(i);
    const std::string path = fmt::format("telemetry.trace_steps[{}]", i);
    if (step < 1 || step > training.steps()) {
      add(&problems, path, "is {}, no step of this job: they go from 1 to training.steps {}", step, training.steps());
    } else if (!named.insert(step).second) {
      add(&problems, path, "is {}, which stands there before; name each step once", step);
    }
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
  append(&problems, check_recompute(job.training(), job.model()));
  append(&problems, check_checkpoint(job.checkpoint()));
  append(&problems, check_telemetry(job.telemetry(), job.training()));
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
