// What `ananke supervise` does, a task of srun: starts one worker, hands it the signals that Slurm sends, and tells the
// launcher how it ended, which srun itself would only print.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ananke {

// `words`: the run folder, then the worker's own, with which `work` is called in a process of its own; what it returns
// is that one's exit code. A copy of this process and no program that is executed, since with all libraries that costs
// as much again as starting this one did. Returns the supervisor's own exit code.
int supervise(const std::vector<std::string>& words,
              const std::function<int(const std::vector<std::string>& words)>& work);

}  // namespace ananke
