#include "launcher/slurm/srun_launch.h"

#include <cstdlib>
#include <future>

#include "ananke/site.pb.h"
#include "launcher/slurm/address.h"
#include "launcher/slurm/health_step.h"
#include "launcher/slurm/probe.h"
#include "launcher/slurm/topology.h"
#include "runtime/base/error.h"
#include "runtime/base/process.h"
#include "runtime/base/units.h"
#include "runtime/config/site.h"

namespace ananke {
namespace {

std::vector<std::string> preferred_mpi(const Slurm& profile) {
  if (profile.mpi().empty()) return {"pmix", "none"};
  return {profile.mpi().begin(), profile.mpi().end()};
}

std::string text_of(const std::vector<std::pair<std::string, std::string>>& gone) {
  std::string text;
  for (const auto& [node, state] : gone) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", node, state);
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

Allocation required_allocation(const Site& site) {
  auto allocation = read_allocation([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
  if (allocation) return *std::move(allocation);
  fail(ErrorKind::config,
       "site '{}' starts workers by srun, inside of an allocation, and this is none (SLURM_JOB_ID is not set): use "
       "sbatch or salloc, or a site with start: LOCAL",
       site.name());
}

// Nodes in the order of their ranks, of those that live; the others are left over.
StepLayout lay_out_by_place(const Allocation& allocation, const LiveNodes& nodes, const Site& site,
                            const MeshShape& mesh, int wanted, SrunPlan& plan) {
  const std::string gone = text_of(nodes.gone);
  const StepLayout first = lay_out(allocation, nodes.live, gone, mesh.ranks(), wanted);
  const Places places = places_of_nodes(nodes.live, site, parse_duration(site.slurm().command_deadline()));
  plan.placed_by = places.source;
  plan.ranks = map_ranks(places.nodes, mesh, first.ranks_per_node);
  plan.ranks.notices.insert(plan.ranks.notices.begin(), places.notices.begin(), places.notices.end());
  std::vector<std::string> ordered = plan.ranks.node_names();
  if (ordered.size() > 1) {
    plan.notes.push_back(fmt::format("ranks follow where nodes are, by {}; map {}", places.source, plan.ranks.hash()));
    plan.notes.insert(plan.notes.end(), plan.ranks.notices.begin(), plan.ranks.notices.end());
  }
  for (const NodePlace& node : plan.ranks.unused) ordered.push_back(node.node);
  return lay_out(allocation, ordered, gone, mesh.ranks(), wanted);
}

// Asks the nodes that live how they are, and leaves out those that will not do.
void choose_healthy(const Site& site, const SpareRequest& spares, const std::string& job, int ranks_per_node,
                    LiveNodes* nodes, SrunPlan* plan) {
  const HealthStep step = run_health_step(nodes->live, site, spares.site, QUICK);
  const HealthReport& report = plan->health.emplace(make_report(step.answers, site, QUICK, job, step.asked));
  const std::size_t before = nodes->live.size();
  leave_out_bad(report, nodes);
  if (spares.host_bytes > 0) leave_out_small(report, ranks_per_node, spares.host_bytes, nodes);
  plan->notes.push_back(
      fmt::format("{} spare nodes; of {} nodes that are there {} will do", spares.spares, before, nodes->live.size()));
  plan->notes.insert(plan->notes.end(), report.note().begin(), report.note().end());
}

// Ranks of a node; 0: as Slurm's variables and the number of nodes have it.
int wanted_on_node(const Site& site, const Allocation& allocation, int ranks, int spares) {
  const int wanted = ranks_wanted_on_node(site, ranks);
  if (wanted > 0 || allocation.tasks_per_node) return wanted;
  return ranks_per_node_with_spares(ranks, static_cast<int>(allocation.nodes.size()), spares);
}

// By which other nodes reach this one.
std::string address_here(const Site& site, const Allocation& allocation, std::chrono::milliseconds deadline) {
  return launcher_address({site.slurm().launcher_address(), site.network_interface()},
                          allocation.here.empty() ? host_name() : allocation.here,
                          std::min(deadline, std::chrono::milliseconds(5'000)));
}

}  // namespace

SrunPlan plan_srun(const Site& site, const MeshShape& mesh, const SpareRequest& spares) {
  const Slurm& profile = site.slurm();
  const std::chrono::milliseconds deadline = parse_duration(profile.command_deadline());
  const Allocation allocation = required_allocation(site);
  SrunPlan plan;
  plan.job_id = allocation.job_id;
  plan.restarts = allocation.restarts;
  // Each waits for somebody else: they wait together.
  auto address = std::async(std::launch::async, [&] { return address_here(site, allocation, deadline); });
  auto live = std::async(std::launch::async, [&] { return find_live_nodes(allocation.nodes, deadline); });
  const SlurmTraits traits = probe_slurm(deadline);
  const auto [mpi, why] = choose_mpi(traits, preferred_mpi(profile));
  LiveNodes nodes = live.get();
  const int wanted = wanted_on_node(site, allocation, mesh.ranks(), spares.spares);
  if (spares.spares > 0) {
    const int on_node = wanted > 0 ? wanted : allocation.tasks_per_node.value_or(1);
    choose_healthy(site, spares, allocation.job_id, on_node, &nodes, &plan);
  }
  SrunPlan placed;
  plan.srun.layout = lay_out_by_place(allocation, nodes, site, mesh, wanted, placed);
  plan.ranks = std::move(placed.ranks);
  plan.placed_by = std::move(placed.placed_by);
  plan.srun.mpi = mpi;
  plan.srun.flags = {profile.srun_flag().begin(), profile.srun_flag().end()};
  plan.srun.command_deadline = deadline;
  const StepLayout& layout = plan.srun.layout;
  plan.srun.one_node = layout.nodes.size() == 1 && layout.nodes.front() == allocation.here;
  plan.srun.control_host = plan.srun.one_node ? "127.0.0.1" : address.get();
  plan.notes.push_back(fmt::format(
      "Slurm {} ({}), job {}{}, --mpi={}: {}", traits.version.known() ? traits.version.text : "of an unknown version",
      traits.psslurm ? "psslurm" : "slurmd", allocation.job_id,
      allocation.restarts == 0 ? "" : fmt::format(", restart {}", allocation.restarts), mpi, why));
  plan.notes.push_back(fmt::format("{} ranks, {} on each of {} nodes; launcher at {}", mesh.ranks(),
                                   layout.ranks_per_node, layout.nodes.size(), plan.srun.control_host));
  plan.notes.insert(plan.notes.end(), placed.notes.begin(), placed.notes.end());
  if (!nodes.gone.empty()) plan.notes.push_back("nodes of the allocation that cannot be used: " + text_of(nodes.gone));
  if (!layout.unused.empty()) plan.notes.push_back("nodes that are not needed: " + joined(layout.unused));
  if (!nodes.problem.empty()) plan.notes.push_back("UNKNOWN which nodes are there: " + nodes.problem);
  return plan;
}

}  // namespace ananke
