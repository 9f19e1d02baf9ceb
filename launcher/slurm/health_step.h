// Health of an allocation's nodes: one task on each, by one srun with a deadline. What a node says comes through srun's
// standard output, in lines short enough to stay whole there.
#pragma once

#include <string>
#include <vector>

#include "runtime/health/report.h"

namespace ananke {

// "ananke-health NODE 2/5 BASE64": all of a node's lines together are its NodeHealth.
std::vector<std::string> to_health_lines(const NodeHealth& node);

// An answer for each of `nodes`, in their order. One whose lines are not all there, or damaged, or twice of different
// content has none; `why_not` says why nodes of which nothing was heard are silent.
std::vector<NodeAnswer> parse_health_lines(const std::vector<std::string>& nodes, const std::string& output,
                                           const std::string& why_not);

// The whole command. `site`: as --site takes it, to be found on the other nodes.
std::vector<std::string> health_srun_words(const std::vector<std::string>& nodes, const Site& profile,
                                           const std::string& program, const std::string& site, HealthLevel level);

struct HealthStep {
  std::vector<NodeAnswer> answers;  // for every node given
  AskedAt asked;
  std::vector<std::string> notes;
};

// Asks Slurm which of the nodes are there, and those how they are. Throws Error(resource) only where no process can be
// started.
HealthStep run_health_step(const std::vector<std::string>& nodes, const Site& profile, const std::string& site,
                           HealthLevel level);

}  // namespace ananke
