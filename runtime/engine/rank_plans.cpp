#include "runtime/engine/rank_plans.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/config/site.h"
#include "runtime/engine/alone.h"
#include "runtime/engine/memory_report.h"
#include "runtime/engine/trainer.h"
#include "runtime/plugin/registry.h"

namespace ananke {
namespace {

constexpr int small_job = 12, of_large_jobs = 4;  // ranks, all or those that are looked at

// One rank's trainer, for its plan.
class DryRank {
 public:
  DryRank(const Job& job, const Site& site, const PluginRegistry& plugins, int rank)
      : mesh_(mesh_of(job.mesh())), alone_(rank, mesh_.ranks()), context_(context(job, site, rank)) {
    trainer_ = std::make_unique<Trainer>(make_roles(job, plugins, context_), context_, alone_, alone_, alone_);
  }
  Trainer& trainer() { return *trainer_; }

 private:
  RoleContext context(const Job& job, const Site& site, int rank) const {
    const int node = ranks_of_node(site, mesh_.ranks());
    RoleContext context{job, site, mesh_, rank, node};
    context.node = "node" + std::to_string(rank / node);
    context.local_rank = rank % node;
    context.dry = true;
    return context;
  }

  const MeshShape mesh_;
  Alone alone_;
  const RoleContext context_;
  std::unique_ptr<Trainer> trainer_;
};

// Bytes that differ from rank to rank: what each owns with its states, and the matrices that it updates in its largest
// round. Near enough to tell which ranks need most.
std::vector<std::uint64_t> differing_bytes(const Job& job, Trainer& trainer) {
  const Engine& engine = trainer.engine();
  const MeshShape mesh = mesh_of(job.mesh());
  std::vector<std::uint64_t> bytes;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    std::uint64_t& sum = bytes.emplace_back(0);
    for (const Fragment& fragment : engine.placement().fragments(rank)) {
      const auto index = static_cast<std::size_t>(fragment.parameter);
      const Optimizer& optimizer = *engine.optimizers().at(trainer.optimizer_names()[index]);
      const std::size_t tensors = 2 + optimizer.states(engine.table().parameters()[index]).size();
      sum += tensors * sizeof(float) * static_cast<std::uint64_t>(fragment.count);
    }
  }
  std::map<std::tuple<int, int, bool, int>, std::uint64_t> rounds;
  for (const MatrixWork::Assignment& matrix : trainer.matrix_work().assignments()) {
    rounds[{matrix.replica, matrix.rank, matrix.travels, matrix.round}] +=
        static_cast<std::uint64_t>(matrix.rows * matrix.columns) * sizeof(float);
  }
  std::map<int, std::uint64_t> largest;
  for (const auto& [key, round] : rounds) {
    std::uint64_t& most = largest[std::get<0>(key) * mesh.shard + std::get<1>(key)];
    most = std::max(most, round);
  }
  for (const auto& [rank, most] : largest) {
    if (rank < std::ssize(bytes)) bytes[static_cast<std::size_t>(rank)] += 2 * most;
  }
  return bytes;
}

std::vector<int> ranks_to_look_at(const Job& job, Trainer& first) {
  std::vector<int> ranks(static_cast<std::size_t>(mesh_of(job.mesh()).ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (std::ssize(ranks) <= small_job) return ranks;
  const std::vector<std::uint64_t> bytes = differing_bytes(job, first);
  std::ranges::stable_sort(ranks, std::greater<>(), [&](int rank) { return bytes[static_cast<std::size_t>(rank)]; });
  ranks.resize(of_large_jobs);
  return ranks;
}

}  // namespace

int ranks_of_node(const Site& site, int ranks) {
  const int wanted = ranks_wanted_on_node(site, ranks);
  return wanted > 0 ? wanted : ranks;
}

RankPlans plan_ranks(const Job& job, const Site& site) {
  PluginRegistry plugins;
  for (const PluginFile& file : job.resolved().plugins()) plugins.load(file.name(), file.path(), file.hash());
  DryRank first(job, site, plugins, 0);
  RankPlans plans;
  plans.ranks = mesh_of(job.mesh()).ranks();
  plans.on_host = first.trainer().engine().backend().computes_on_host();
  for (const int rank : ranks_to_look_at(job, first.trainer())) {
    std::vector<PlanLine> lines;
    if (rank == 0) {
      lines = whole_plan(first.trainer());
    } else {
      lines = whole_plan(DryRank(job, site, plugins, rank).trainer());
    }
    const MemoryReport report = memory_report(rank, plans.ranks, lines);
    const bool is_first = plans.looked_at++ == 0;
    if (is_first || report.device_planned() > plans.largest.device_planned()) plans.largest = report;
    if (is_first || report.host_planned() > plans.host.host_planned()) plans.host = report;
  }
  return plans;
}

}  // namespace ananke
