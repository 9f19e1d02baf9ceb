// What is to be known before workers are started by srun: the allocation, its nodes that live, how srun is called.
#pragma once

#include <string>
#include <vector>

#include "launcher/slurm/srun_workers.h"

namespace ananke {

class Site;

struct SrunPlan {
  SrunSpec srun;
  std::string job_id;
  int restarts = 0;                // times that Slurm has requeued this job
  std::vector<std::string> notes;  // what was found and chosen, a line each
};

// Asks Slurm, changes nothing. Throws Error(config) outside of an allocation or where the ranks do not fit its live
// nodes, Error(resource) and Error(stalled) where Slurm does not answer.
SrunPlan plan_srun(const Site& site, int ranks);

}  // namespace ananke
