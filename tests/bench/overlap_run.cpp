#include "tests/bench/overlap_run.h"

#include <google/protobuf/text_format.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <vector>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/config/job.h"
#include "runtime/engine/trainer.h"
#include "runtime/plugin/registry.h"
#include "tests/bench/timed_backend.h"

namespace ananke::testing {
namespace {

constexpr int layers = 6;
constexpr double milli = 1e-3;

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ananke-overlap-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) fail(ErrorKind::resource, "cannot make folder {}", pattern);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string job_text(const OverlapCase& c, const std::filesystem::path& run_dir) {
  const int ranks = c.mesh.ranks(), sequence = 32;
  std::string text = fmt::format(
      "run_dir: '{}'\n"
      "model {{ vocab_size: 64 hidden_size: {} num_hidden_layers: {} num_attention_heads: 4 num_key_value_heads: 2 "
      "head_dim: 8 intermediate_size: {} max_position_embeddings: {} ",
      run_dir.string(), c.hidden, layers, 2 * c.hidden, sequence);
  if (c.experts > 0) {
    text += fmt::format("num_experts: {} num_experts_per_tok: 2 moe_intermediate_size: {} ", c.experts, c.hidden);
  }
  text += c.model;
  text += fmt::format(
      "}}\nmesh {{ replicate: {} shard: {} expert: {} }}\n"
      "training {{ steps: {} sequence_length: {} rows_per_step: {} {} }}\n"
      "data {{ generated {{ documents: 400 shortest: 8 longest: 40 branches: 3 }} }}\nplugins {{ use: 'adamw' }}\n",
      c.mesh.replicate, c.mesh.shard, c.mesh.expert, c.steps, sequence, std::max(1, c.tokens / sequence) * ranks,
      c.training);
  if (c.chunks > 0)
    text += fmt::format("plugins {{ config {{ [ananke/ananke.plugin.Ep] {{ chunks: {} }} }} }}\n", c.chunks);
  if (!c.fsdp.empty()) text += fmt::format("plugins {{ config {{ [ananke/ananke.plugin.Fsdp] {{ {} }} }} }}\n", c.fsdp);
  if (c.muon) text += "plugins { use: 'muon' }\noptimizer { match: 'experts|_proj' use: 'muon' }\n";
  return text + "optimizer { match: '.*' use: 'adamw' }\n" + c.changes;
}

LoadedJob load(const OverlapCase& c, const Folder& folder) {
  const std::filesystem::path file = folder.path() / "job.textproto";
  std::ofstream(file) << job_text(c, folder.path() / "run");
  JobOptions options;
  options.file = file;
  options.plugin_folders = {std::filesystem::path(ANANKE_BINARY_DIR) / "lib" / "ananke"};
  return load_job(options);
}

// Notes how long steps take: from the end of one to the end of the next.
class Stopwatch final : public Observer, public RunControl {
 public:
  explicit Stopwatch(const TimedBackend& backend) : backend_(backend) {}
  void on_step(const StepRecord&) override {
    const double now = backend_.now();
    if (steps_++ > 0) shortest_ = std::min(shortest_, now - last_);
    last_ = now;
    for (const Resource resource : {Resource::network, Resource::nvlink}) {
      const auto r = static_cast<std::size_t>(resource);
      collectives_[r] = backend_.collectives(resource) - before_[r];
      before_[r] += collectives_[r];
    }
  }
  void on_evaluation(const EvaluationRecord&) override {}
  void on_event(const RunEvent&) override {}
  bool stop_requested() const override { return false; }
  void phase(std::string_view, std::uint64_t) override {}
  void console(const std::string&) override {}
  double shortest() const { return shortest_; }
  int collectives(Resource resource) const { return collectives_[static_cast<std::size_t>(resource)]; }

 private:
  const TimedBackend& backend_;
  double last_ = 0, shortest_ = 1e9;
  int steps_ = 0;
  std::array<int, resource_count> collectives_{}, before_{};  // of the last step; up to it
};

// Collectives that move a unit once: one per segment that it has.
int collectives_of(const Placement& placement, int unit) {
  const UnitPlacement& place = placement.unit(unit, {});
  int count = 0;
  for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
    count += place.ranks > 1 && place.segment(which).range > 0 ? 1 : 0;
  }
  return count;
}

TimedSetup setup_of(const OverlapCase& c, int rank, MeetingTimes& meetings) {
  const double slow = rank == c.slow_rank ? c.slow_factor : 1;
  const double half = slow * milli * c.layer / 2;
  TimedSetup setup;
  setup.clock = c.clock;
  setup.meetings = &meetings;
  setup.operators = {half, half / std::max(1, c.chunks), slow * milli * c.head, slow * milli * c.newton_schulz};
  setup.network = c.network;
  setup.nvlink = c.nvlink / std::max(1, c.chunks);
  return setup;
}

struct Watched {
  double step = 0;
  int network = 0, nvlink = 0;  // collectives of a step
  int first = 0, last = 0;      // of them, before the first layer and after the last one's backward
};

using ChangeSetup = std::function<void(int rank, TimedSetup&)>;

Watched run(const OverlapCase& c, const ChangeSetup& change = {}) {
  const Folder folder;
  const LoadedJob loaded = load(c, folder);
  Site site;
  site.mutable_deadlines()->set_exchange("60s");
  site.mutable_deadlines()->set_step("60s");
  Watched watched;
  MeetingTimes meetings;
  run_rank_threads(c.mesh.ranks(), std::chrono::seconds(60), [&](int rank, Rendezvous& rendezvous) {
    PluginRegistry plugins;
    for (const PluginFile& file : loaded.job.resolved().plugins()) plugins.load(file.name(), file.path(), file.hash());
    const RoleContext context{loaded.job, site, c.mesh, rank, c.mesh.ranks()};
    EngineRoles roles = make_roles(loaded.job, plugins, context);
    TimedSetup setup = setup_of(c, rank, meetings);
    if (change) change(rank, setup);
    auto backend = std::make_unique<TimedBackend>(context, setup);
    Stopwatch stopwatch(*backend);
    roles.backend = std::move(backend);
    Trainer trainer(std::move(roles), context, rendezvous, stopwatch, stopwatch);
    trainer.start(false);
    trainer.train();
    rendezvous.exchange("bench done", {}, "");
    if (rank != 0) return;
    watched.step = stopwatch.shortest();
    watched.network = stopwatch.collectives(Resource::network);
    watched.nvlink = stopwatch.collectives(Resource::nvlink);
    const Engine& engine = trainer.engine();
    for (const int block : {0, 1}) {
      const int unit = engine.table().blocks()[static_cast<std::size_t>(block)].units[0];
      watched.first += collectives_of(engine.placement(), unit);
      watched.last += collectives_of(engine.placement(), unit) + (c.mesh.replicate > 1 ? 1 : 0);
    }
  });
  return watched;
}

}  // namespace

OverlapReport measure_overlap(const OverlapCase& what) {
  OverlapCase still = what;
  still.network = still.nvlink = 0;
  OverlapReport report;
  report.compute = run(still).step;
  const Watched watched = run(what);
  report.step = watched.step;
  report.network = milli * what.network * watched.network;
  const double exchange = milli * (what.nvlink / std::max(1, what.chunks));
  report.nvlink = exchange * watched.nvlink;
  report.first_gather = milli * what.network * watched.first;
  report.last_reduce = milli * what.network * watched.last;
  // Counts, the first chunk's dispatch, the last one's combine; and in the backward both of these.
  if (what.chunks > 0 && what.mesh.expert > 1) report.exchange_edges = exchange * layers * 5;
  return report;
}

void run_until_failure(const OverlapCase& what, int rank, int failing, const std::string& text) {
  run(what, [&](int mine, TimedSetup& setup) {
    if (mine != rank) return;
    setup.before_network = [failing, text](Stream& network, int count) {
      if (count == failing) network.run_on_host([text] { fail(ErrorKind::internal, "{}", text); });
    };
  });
}

}  // namespace ananke::testing
