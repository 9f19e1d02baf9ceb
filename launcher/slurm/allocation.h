// The allocation that this process is in, and how a job's ranks are laid out on its nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/bootstrap/identity.h"

namespace ananke {

struct Allocation {
  std::string job_id;
  std::vector<std::string> nodes;     // in Slurm's order
  std::vector<int> cpus;              // allocated of each; empty: not said
  std::optional<int> tasks_per_node;  // asked for with --ntasks-per-node
  std::optional<int> cpus_per_task;   // likewise
  std::string here;                   // this node; empty: none of them (a login node)
  int restarts = 0;                   // times that the job was requeued
};

// From Slurm's variables; an empty one counts as unset. Nothing where SLURM_JOB_ID is unset. Throws Error(config)
// quoting a variable that cannot be.
std::optional<Allocation> read_allocation(const EnvironmentLookup& lookup);

struct StepLayout {
  std::vector<std::string> nodes;   // used, in order
  std::vector<std::string> unused;  // there, but not needed
  int ranks_per_node = 1;
  int cpus_per_rank = 0;  // 0: not said
};

// Ranks in blocks over the first of the live nodes, which are in the order that ranks shall have; as many on each as
// `wanted_per_node`, or where that is 0 the allocation's --ntasks-per-node, or where that is not said either as many as
// make use of all live nodes. Throws Error(config) with the numbers where they do not fit; `gone` names nodes that are
// missing, for that message.
StepLayout lay_out(const Allocation& allocation, const std::vector<std::string>& live, const std::string& gone,
                   int ranks, int wanted_per_node);

}  // namespace ananke
