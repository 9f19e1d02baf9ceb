#include "launcher/slurm/allocation.h"

#include <algorithm>
#include <charconv>

#include "launcher/slurm/lists.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

class Reader {
 public:
  explicit Reader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::string text(const char* name) const {
    const char* value = lookup_(name);
    return value == nullptr ? "" : value;
  }
  std::optional<int> number(const char* name, int least) const {
    const std::string value = text(name);
    if (value.empty()) return std::nullopt;
    int parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    if (error != std::errc() || end != value.data() + value.size() || parsed < least || parsed > 1 << 24) {
      fail(ErrorKind::config, "the environment says {}='{}', which is no number from {} to {}; unset or correct it",
           name, value, least, 1 << 24);
    }
    return parsed;
  }
  // Names of the variable and what it says, for messages.
  static std::string what(const char* name) { return fmt::format("the environment's {}", name); }

 private:
  const EnvironmentLookup& lookup_;
};

}  // namespace

std::optional<Allocation> read_allocation(const EnvironmentLookup& lookup) {
  const Reader environment(lookup);
  Allocation allocation;
  allocation.job_id = environment.text("SLURM_JOB_ID");
  if (allocation.job_id.empty()) return std::nullopt;
  const char* name = "SLURM_JOB_NODELIST";
  std::string nodes = environment.text(name);
  if (nodes.empty()) nodes = environment.text(name = "SLURM_NODELIST");
  if (nodes.empty()) {
    fail(ErrorKind::config,
         "SLURM_JOB_ID is {}, but SLURM_JOB_NODELIST is not set: this is no allocation of nodes; start the job "
         "by sbatch or in a shell of salloc, or unset SLURM_JOB_ID for a site with start: LOCAL",
         allocation.job_id);
  }
  allocation.nodes = parse_host_list(Reader::what(name), nodes);
  const std::string cpus = environment.text("SLURM_JOB_CPUS_PER_NODE");
  if (!cpus.empty()) {
    allocation.cpus = parse_counts(Reader::what("SLURM_JOB_CPUS_PER_NODE"), cpus);
    if (allocation.cpus.size() != allocation.nodes.size()) {
      fail(ErrorKind::config,
           "the environment's {}='{}' has {} nodes, SLURM_JOB_CPUS_PER_NODE='{}' has {}: they are of two allocations; "
           "start from a shell that has the variables of one, or unset the wrong one",
           name, nodes, allocation.nodes.size(), cpus, allocation.cpus.size());
    }
  }
  allocation.tasks_per_node = environment.number("SLURM_NTASKS_PER_NODE", 1);
  allocation.cpus_per_task = environment.number("SLURM_CPUS_PER_TASK", 1);
  allocation.restarts = environment.number("SLURM_RESTART_COUNT", 0).value_or(0);
  const std::string here = environment.text("SLURMD_NODENAME");
  if (std::ranges::find(allocation.nodes, here) != allocation.nodes.end()) allocation.here = here;
  return allocation;
}

StepLayout lay_out(const Allocation& allocation, const std::vector<std::string>& live, const std::string& gone,
                   int ranks, int wanted_per_node) {
  const int have = static_cast<int>(live.size());
  const std::string missing = gone.empty() ? "" : " (not there: " + gone + ")";
  if (have == 0) {
    fail(ErrorKind::config,
         "no node of job {} can be used{}; `sinfo -R` says why nodes are out: submit again, with --exclude where they "
         "are still offered",
         allocation.job_id, missing);
  }
  int per_node = wanted_per_node > 0 ? wanted_per_node : allocation.tasks_per_node.value_or(0);
  const char* source = wanted_per_node > 0 ? "the site's slurm.ranks_per_node" : "--ntasks-per-node";
  if (per_node == 0) {
    source = "all of the nodes";
    if (ranks % have != 0) {
      fail(ErrorKind::config,
           "{} ranks do not spread evenly over the {} nodes of job {}{}; ask for a number of nodes that divides them, "
           "or "
           "say how many ranks a node takes: --ntasks-per-node, or slurm.ranks_per_node in the site",
           ranks, have, allocation.job_id, missing);
    }
    per_node = ranks / have;
  }
  if (ranks % per_node != 0) {
    fail(ErrorKind::config, "{} ranks are no multiple of the {} that a node takes by {}; change the mesh or that",
         ranks, per_node, source);
  }
  const int need = ranks / per_node;
  if (need > have) {
    fail(ErrorKind::config, "{} ranks at {} a node (by {}) need {} nodes, and job {} has {}{}; allocate more", ranks,
         per_node, source, need, allocation.job_id, have, missing);
  }
  StepLayout layout;
  layout.nodes.assign(live.begin(), live.begin() + need);
  layout.unused.assign(live.begin() + need, live.end());
  layout.ranks_per_node = per_node;
  if (allocation.cpus_per_task) {
    layout.cpus_per_rank = *allocation.cpus_per_task;
  } else if (!allocation.cpus.empty()) {
    int least = 1 << 24;
    for (std::size_t i = 0; i < allocation.nodes.size(); ++i) {
      const bool used = std::ranges::find(layout.nodes, allocation.nodes[i]) != layout.nodes.end();
      if (used) least = std::min(least, allocation.cpus[i]);
    }
    layout.cpus_per_rank = least / per_node;
  }
  return layout;
}

}  // namespace ananke
