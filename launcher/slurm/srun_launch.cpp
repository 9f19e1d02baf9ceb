#include "launcher/slurm/srun_launch.h"

#include <cstdlib>

#include "ananke/site.pb.h"
#include "launcher/slurm/address.h"
#include "launcher/slurm/probe.h"
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

}  // namespace

SrunPlan plan_srun(const Site& site, int ranks) {
  const Slurm& profile = site.slurm();
  const std::chrono::milliseconds deadline = parse_duration(profile.command_deadline());
  const Allocation allocation = required_allocation(site);
  SrunPlan plan;
  plan.job_id = allocation.job_id;
  plan.restarts = allocation.restarts;
  const SlurmTraits traits = probe_slurm(deadline);
  const auto [mpi, why] = choose_mpi(traits, preferred_mpi(profile));
  const LiveNodes nodes = find_live_nodes(allocation.nodes, deadline);
  const std::string gone = text_of(nodes.gone);
  plan.srun.layout = lay_out(allocation, nodes.live, gone, ranks, ranks_wanted_on_node(site, ranks));
  plan.srun.mpi = mpi;
  plan.srun.flags = {profile.srun_flag().begin(), profile.srun_flag().end()};
  plan.srun.command_deadline = deadline;
  const StepLayout& layout = plan.srun.layout;
  plan.srun.one_node = layout.nodes.size() == 1 && layout.nodes.front() == allocation.here;
  plan.srun.control_host = plan.srun.one_node
                               ? "127.0.0.1"
                               : launcher_address({profile.launcher_address(), site.network_interface()},
                                                  allocation.here.empty() ? host_name() : allocation.here,
                                                  std::min(deadline, std::chrono::milliseconds(5'000)));
  plan.notes.push_back(fmt::format(
      "Slurm {} ({}), job {}{}, --mpi={}: {}", traits.version.known() ? traits.version.text : "of an unknown version",
      traits.psslurm ? "psslurm" : "slurmd", allocation.job_id,
      allocation.restarts == 0 ? "" : fmt::format(", restart {}", allocation.restarts), mpi, why));
  plan.notes.push_back(fmt::format("{} ranks, {} on each of {} nodes; launcher at {}", ranks, layout.ranks_per_node,
                                   layout.nodes.size(), plan.srun.control_host));
  if (!gone.empty()) plan.notes.push_back("nodes of the allocation that cannot be used: " + gone);
  if (!layout.unused.empty()) plan.notes.push_back("nodes that are not needed: " + joined(layout.unused));
  if (!nodes.problem.empty()) plan.notes.push_back("UNKNOWN which nodes are there: " + nodes.problem);
  return plan;
}

}  // namespace ananke
