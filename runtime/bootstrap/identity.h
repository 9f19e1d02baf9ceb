// Who am I among the job's workers: what the process manager says, checked.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace ananke {

struct Identity {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the workers of this node
  int local_size = 1;
  int node_index = 0;  // of this node among the job's nodes
  std::string host;    // this node, as the process manager names it (under Slurm: NodeName)
  std::string job_id;  // the same on all ranks, another for every start
  std::string source;  // where all this comes from, for the log: "PMIx 4.2.2", "Slurm's environment"
};

using EnvironmentLookup = std::function<const char*(const char* name)>;  // like getenv

// PMIx where a PMIx server started this process (`ananke run`, `srun --mpi=pmix`), else Slurm's variables
// (`srun --mpi=none`). PMIx is initialised, asked and finalised within `deadline`; a library that hangs gives
// Error(stalled) naming its version and file. Under Slurm's own PMIx server (namespace "slurm....") the variables say
// the same, so there a library that fails, or hangs for half the deadline, is done without, and `source` tells.
// Error(config) quotes a variable that is no number or cannot be; Error(usage) where nothing tells.
//
// Nothing is exchanged over PMIx and there is no fence: the ranks meet on the control channel, which names who is
// missing, where a fence would hold everyone.
Identity identify(std::chrono::milliseconds deadline);

// Slurm's part, on its own. An empty variable counts as unset.
Identity identify_by_slurm(const EnvironmentLookup& lookup);

namespace detail {
Identity identify_by_pmix(std::chrono::milliseconds deadline);
void check_identity(const Identity& identity);  // throws Error(config) naming the numbers that contradict
}  // namespace detail

}  // namespace ananke
