// What is to be known before workers are started by srun: the allocation, its nodes that live, how srun is called.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/slurm/spares.h"
#include "launcher/slurm/srun_workers.h"
#include "runtime/topology/rank_map.h"

namespace ananke {

class Site;

struct SrunPlan {
  SrunSpec srun;
  std::string job_id;
  int restarts = 0;                         // times that Slurm has requeued this job
  std::vector<std::string> notes;           // what was found and chosen, a line each
  RankMap ranks;                            // which rank is on which node
  std::string placed_by;                    // by what it is known where nodes are
  std::optional<HealthReport> health = {};  // of an allocation with spare nodes
};

// Ranks are laid out by where the nodes are (runtime/topology). With spare nodes the health of all is asked first, as a
// step of its own, and bad ones are left out. Asks Slurm, changes nothing. Throws Error(config) outside of an allocation
// or where the ranks do not fit its live nodes, Error(resource) and Error(stalled) where Slurm does not answer.
SrunPlan plan_srun(const Site& site, const MeshShape& mesh, const SpareRequest& spares = {});

}  // namespace ananke
