#include "runtime/config/job.h"

#include <algorithm>
#include <array>

#include "ananke/plugin.pb.h"
#include "ananke/version.h"
#include "runtime/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/config/override.h"
#include "runtime/config/path.h"
#include "runtime/config/plugins.h"
#include "runtime/config/rules.h"
#include "runtime/config/text.h"
#include "runtime/config/validate.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_ranks = 1u << 20;

struct AppliedOverride {
  std::string path;  // as problems name it
  std::string text;
};

bool covers(const std::string& outer, const std::string& path) {
  return path.starts_with(outer) &&
         (path.size() == outer.size() || path[outer.size()] == '.' || path[outer.size()] == '[');
}

// One job being read.
class Reader {
 public:
  explicit Reader(const JobOptions& options) : options_(options) {}
  LoadedJob run();

 private:
  std::vector<fs::path> libraries();
  void apply_overrides();
  void report(const Problems& problems) const;
  std::uint32_t count_ranks() const;
  void fill(std::uint32_t ranks);

  const JobOptions& options_;
  SourceText source_;
  std::vector<Override> overrides_;
  std::vector<AppliedOverride> applied_;
  std::shared_ptr<PluginsAtHand> at_hand_;
  Job job_;
};

// Errors of what `where` asked for open with it.
template <class Work>
void blame(const std::string& where, Work work) {
  try {
    work();
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}", where, error.what());
  }
}

// Reads the file's note once more than needed, for an error that says who named the file.
void check_library(const std::string& where, const std::string& file) {
  blame(where, [&] { read_plugin(file); });
}

// The first pass: only what is needed to know which files to read notes from.
std::vector<fs::path> Reader::libraries() {
  Job skeleton;
  parse_text(source_, Schema(), Reading::tolerant, &skeleton);
  std::vector<fs::path> files;
  for (const Override& change : overrides_) {
    const bool library =
        change.path.size() > 1 && change.path[0].name == "plugins" && change.path.back().name == "library";
    if (!library || change.value.empty()) continue;
    check_library("--set " + change.text, change.value);
    files.emplace_back(change.value);
    const auto index = change.path[0].index;  // its line in the text does not count any more
    if (index && *index < skeleton.plugins_size()) skeleton.mutable_plugins(*index)->clear_library();
  }
  for (int i = 0; i < skeleton.plugins_size(); ++i) {
    const std::string& file = skeleton.plugins(i).library();
    if (file.empty()) continue;
    const std::string path = fmt::format("plugins[{}].library", i);
    check_library(fmt::format("{}: {}", locate(source_, Job::descriptor(), path), path), file);
    files.emplace_back(file);
  }
  return files;
}

void Reader::apply_overrides() {
  for (const Override& change : overrides_) {
    std::string path = apply_override(change, at_hand_->schema, &job_);
    applied_.push_back({std::move(path), change.text});
  }
}

void Reader::report(const Problems& problems) const {
  if (problems.empty()) return;
  std::string text;
  for (const Problem& problem : problems) {
    const auto by =
        std::find_if(applied_.rbegin(), applied_.rend(), [&](auto& one) { return covers(one.path, problem.path); });
    const std::string where =
        by != applied_.rend() ? "--set " + by->text : locate(source_, at_hand_->schema, job_, problem.path);
    text += fmt::format("{}{}: {} {}", problems.size() > 1 ? "\n  " : "", where, problem.path, problem.message);
  }
  if (problems.size() == 1) fail(ErrorKind::config, "{}", text);
  fail(ErrorKind::config, "{} has {} problems:{}", source_.name, problems.size(), text);
}

std::uint32_t Reader::count_ranks() const {
  if (options_.ranks != 0) return options_.ranks;
  const Mesh& mesh = job_.mesh();
  if (effective_shard(mesh, 0) == 0 && job_.resolved().ranks() != 0) return job_.resolved().ranks();
  const std::uint64_t ranks = ranks_of(mesh);
  if (ranks > most_ranks) {
    report({{"mesh.shard", fmt::format("is {}, and with replicate {} makes {} ranks; at most {} make sense",
                                       effective_shard(mesh, 0), mesh.replicate(), ranks, most_ranks)}});
  }
  return static_cast<std::uint32_t>(ranks);
}

std::string absolute(const std::string& path) {
  return path.empty() ? path : fs::absolute(path).lexically_normal().string();
}

void make_paths_absolute(Job* job) {
  job->set_run_dir(absolute(job->run_dir()));
  if (job->has_initial_weights()) job->set_initial_weights(absolute(job->initial_weights()));
  if (job->data().has_tokens()) job->mutable_data()->set_tokens(absolute(job->data().tokens()));
  for (HeldOut& set : *job->mutable_evaluation()->mutable_held_out()) {
    if (set.has_tokens()) set.set_tokens(absolute(set.tokens()));
  }
  Training* training = job->mutable_training();
  if (training->has_record_routing()) training->set_record_routing(absolute(training->record_routing()));
  if (training->has_replay_routing()) training->set_replay_routing(absolute(training->replay_routing()));
  for (PluginUse& entry : *job->mutable_plugins()) {
    if (entry.has_library()) entry.set_library(absolute(entry.library()));
  }
}

void Reader::fill(std::uint32_t ranks) {
  job_.mutable_learning_rate();
  job_.mutable_checkpoint();
  job_.mutable_evaluation();
  Model* model = job_.mutable_model();
  model->set_num_key_value_heads(effective_num_key_value_heads(*model));
  model->set_head_dim(effective_head_dim(*model));
  Training* training = job_.mutable_training();
  if (!model->has_max_position_embeddings()) model->set_max_position_embeddings(training->sequence_length());
  if (training->rows_per_microbatch() == 0) training->set_rows_per_microbatch(training->rows_per_step() / ranks);
  Mesh* mesh = job_.mutable_mesh();
  mesh->set_shard(static_cast<std::uint32_t>(effective_shard(*mesh, ranks)));
  mesh->set_expert_shard(mesh->shard() / mesh->expert());
  Resolved* resolved = job_.mutable_resolved();
  resolved->set_ranks(ranks);
  resolved->set_version(ANANKE_VERSION);
  resolved->set_source(absolute(options_.file));
  resolve_plugins(*at_hand_, &job_);
  write_defaults(at_hand_->schema, &job_);
}

LoadedJob Reader::run() {
  for (const std::string& text : options_.overrides) overrides_.push_back(parse_override(text));
  source_ = read_source(options_.file);
  const std::vector<fs::path> chosen = libraries();
  blame(source_.name, [&] { at_hand_ = find_plugins(chosen, options_.plugin_folders); });
  parse_text(source_, at_hand_->schema, Reading::strict, &job_);
  apply_overrides();
  report(check_rules(job_, at_hand_->schema));
  const std::uint32_t ranks = count_ranks();
  job_.clear_resolved();  // of an earlier run, where the text comes from a run folder
  make_paths_absolute(&job_);
  Problems problems = complete_plugins(*at_hand_, &job_);
  for (Problems& more : std::array{check_job(job_, ranks), check_files(job_), check_initial_weights(job_)}) {
    problems.insert(problems.end(), more.begin(), more.end());
  }
  report(problems);
  fill(ranks);
  return {std::move(job_), std::shared_ptr<const Schema>(at_hand_, &at_hand_->schema)};
}

}  // namespace

LoadedJob load_job(const JobOptions& options) { return Reader(options).run(); }

LoadedJob load_resolved_job(const fs::path& file) {
  SourceText source = read_source(file);
  Job skeleton;
  parse_text(source, Schema(), Reading::tolerant, &skeleton);
  if (!skeleton.has_resolved()) {
    fail(ErrorKind::config,
         "{} is no resolved job: it has no resolved {{ }}; the launcher writes one into the run folder", file.string());
  }
  auto schema = std::make_shared<Schema>();
  for (const PluginFile& plugin : skeleton.resolved().plugins()) {
    blame(fmt::format("{}: resolved plugin '{}'", source.name, printable(plugin.name(), 200)),
          [&] { schema->add(read_plugin(plugin.path())); });
  }
  LoadedJob loaded;
  parse_text(source, *schema, Reading::strict, &loaded.job);
  loaded.schema = std::move(schema);
  return loaded;
}

std::string print_job(const Job& job, const Schema& schema) { return print_text(job, schema); }
std::string print_job(const LoadedJob& loaded) { return print_text(loaded.job, *loaded.schema); }

std::string_view config_of(const Job& job, std::string_view plugin) {
  for (const PluginUse& entry : job.plugins()) {
    if (entry.use() == plugin) return entry.config().value();
  }
  return {};
}

}  // namespace ananke
