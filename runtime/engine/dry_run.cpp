#include "runtime/engine/dry_run.h"

#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/engine/alone.h"
#include "runtime/engine/memory_report.h"
#include "runtime/engine/optimizer_rules.h"
#include "runtime/engine/rank_plans.h"
#include "runtime/engine/trainer.h"
#include "runtime/plugin/registry.h"
#include "runtime/telemetry/tables.h"

namespace ananke {
namespace {

std::string count_text(std::uint64_t count) { return format_count(static_cast<double>(count)); }

std::string line(const char* title, const std::string& text) { return fmt::format("{:<14} {}\n", title, text); }

std::string every_text(std::uint64_t steps) {
  return steps == 0 ? "after the last step" : fmt::format("every {} steps and after the last", steps);
}

std::string training_text(const Job& job, bool own_batches) {
  const Training& training = job.training();
  const std::uint64_t tokens = std::uint64_t{training.rows_per_step()} * training.sequence_length();
  std::string text = fmt::format("{} steps of {} rows x {} tokens: {} tokens a step, {} in all", training.steps(),
                                 training.rows_per_step(), training.sequence_length(), count_text(tokens),
                                 count_text(tokens * training.steps()));
  if (own_batches) return text;  // a plugin's batches need not be whole documents
  const auto documents = training_documents(job);
  const std::uint64_t once = documents->targets();
  if (once > 0) {
    text += fmt::format(", {:.3g} epochs of {} ({} in {} documents)",
                        static_cast<double>(tokens) * training.steps() / static_cast<double>(once), documents->name(),
                        count_text(once), count_text(documents->documents()));
  }
  return text;
}

std::string order_text(const PassLimits& limits) {
  const int together = limits.microbatches_per_gather;
  if (together == 1) return "the whole model for each in turn";
  if (together == limits.microbatches) return "layer by layer for all of them";
  return fmt::format("layer by layer for {} at a time", together);
}

std::string schedule_text(const Job& job, const Schedule& schedule, const PassLimits& limits) {
  const Training& training = job.training();
  return fmt::format("{} items a step: {} microbatch{} of {} rows a rank, {}, recompute {}, compute {}{}",
                     schedule.size(), limits.microbatches, limits.microbatches == 1 ? "" : "es",
                     training.rows_per_microbatch(), order_text(limits), recompute_text(training),
                     Training::Compute_Name(training.compute()), training.deterministic() ? ", deterministic" : "");
}

std::string learning_rate_text(const Job& job) {
  const LearningRate& rate = job.learning_rate();
  std::string text = LearningRate::Shape_Name(rate.shape());
  if (rate.warmup_steps() > 0) text += fmt::format(", {} steps of warm-up", rate.warmup_steps());
  if (rate.decay_steps() > 0) text += fmt::format(", {} steps of decay", rate.decay_steps());
  if (rate.shape() != LearningRate::CONSTANT) text += fmt::format(", down to a factor of {}", rate.minimum_factor());
  if (rate.total_steps() > 0) text += fmt::format(", laid out for {} steps", rate.total_steps());
  return text;
}

std::string evaluation_text(const Job& job) {
  if (job.evaluation().held_out().empty()) return "none: the job names no held-out set";
  std::string text = every_text(job.evaluation().every_steps()) + ":";
  const char* between = " ";
  for (const HeldOut& set : job.evaluation().held_out()) {
    text += fmt::format("{}{} ({})", std::exchange(between, ", "), set.name(),
                        set.rows() > 0 ? fmt::format("at most {} rows", set.rows())
                                       : count_text(held_out_documents(job, set)->targets()) + " tokens");
  }
  return text;
}

std::string optimizer_text(const std::vector<std::string>& chosen, const ParameterTable& table) {
  std::map<std::string, std::pair<std::size_t, std::int64_t>> of;  // tensors, elements
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    ++of[chosen[i]].first;
    of[chosen[i]].second += table.parameters()[i].shape.elements();
  }
  std::vector<std::string> texts;
  for (const auto& [name, sum] : of) {
    texts.push_back(fmt::format("{} for {} tensors of {} elements", name, sum.first,
                                format_count(static_cast<double>(sum.second))));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Weights and optimizer states in f32, once each.
std::uint64_t checkpoint_bytes(const Job& job, const std::vector<std::string>& chosen, const Engine& engine) {
  std::uint64_t bytes = 0;
  if (job.checkpoint().none()) return bytes;
  const auto& parameters = engine.table().parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::size_t tensors = 1 + engine.optimizers().at(chosen[i])->states(parameters[i]).size();
    bytes += tensors * sizeof(float) * static_cast<std::uint64_t>(parameters[i].shape.elements());
  }
  return bytes;
}

std::string checkpoint_text(const Job& job, std::uint64_t bytes) {
  const Checkpointing& checkpoint = job.checkpoint();
  if (checkpoint.none()) return "none: checkpoint.none is set";
  return fmt::format("{}, about {} each, {} kept", every_text(checkpoint.every_steps()), format_bytes(bytes),
                     checkpoint.keep_last() == 0 ? "all" : fmt::format("the newest {}", checkpoint.keep_last()));
}

}  // namespace

DryRun dry_run(const Job& job, const Site& site) {
  PluginRegistry plugins;
  for (const PluginFile& file : job.resolved().plugins()) plugins.load(file.name(), file.path(), file.hash());
  const MeshShape mesh = mesh_of(job.mesh());
  Alone alone(0, mesh.ranks());
  RoleContext context{job, site, mesh, 0, ranks_of_node(site, mesh.ranks())};
  context.dry = true;
  EngineRoles roles = make_roles(job, plugins, context);  // no observers: they may open files
  const bool own_batches = roles.batches != nullptr;
  Trainer trainer(std::move(roles), context, alone, alone, alone);
  Engine& engine = trainer.engine();
  const std::vector<std::string> chosen = optimizer_of_each(job, engine.table());

  DryRun result;
  result.checkpoint_bytes = checkpoint_bytes(job, chosen, engine);
  result.tables = parameter_table_text(engine.table(), job.training().sequence_length()) + "\n" +
                  engine.placement().table() + "\n" + memory_plan_text(whole_plan(trainer));
  result.plan = line("training", training_text(job, own_batches)) +
                line("schedule", schedule_text(job, trainer.schedule(), pass_limits(job))) +
                line("learning rate", learning_rate_text(job)) +
                line("optimizers", optimizer_text(chosen, engine.table())) + line("evaluation", evaluation_text(job)) +
                line("checkpoints", checkpoint_text(job, result.checkpoint_bytes));
  return result;
}

}  // namespace ananke
