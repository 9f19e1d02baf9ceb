// What is asked of Slurm before workers are started, instead of assumed: version, who runs the tasks, what srun's --mpi
// offers, which nodes of the allocation are still there.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ananke {

struct SlurmVersion {
  int major = 0, minor = 0;  // 22, 5; 0: not known
  std::string text;          // "22.05.8"
  bool known() const { return major > 0; }
  bool at_least(int year, int month) const { return major > year || (major == year && minor >= month); }
};
// Of `srun --version`: "slurm 22.05.8".
SlurmVersion parse_slurm_version(std::string_view text);

// The names that `srun --mpi=list` prints, in whichever of its layouts: "pmix", "none", "pmix_v4".
std::vector<std::string> parse_mpi_list(std::string_view text);

struct SlurmTraits {
  SlurmVersion version;
  bool psslurm = false;          // ParaStation's psid runs the tasks, not slurmd
  std::vector<std::string> mpi;  // what --mpi offers; empty: not known
  std::string mpi_problem;       // why it is not known
};
// Asks srun. Throws Error where there is none that says its version.
SlurmTraits probe_slurm(std::chrono::milliseconds deadline);

// The first of `preferred` that srun offers, and why it, as text for the log. "none" is always there. Throws
// Error(config) where none will do.
std::pair<std::string, std::string> choose_mpi(const SlurmTraits& traits, const std::vector<std::string>& preferred);

// Nodes that a step can run on, and those that it cannot with their state as Slurm gives it. A node without an answer
// counts as there.
struct LiveNodes {
  std::vector<std::string> live;
  std::vector<std::pair<std::string, std::string>> gone;
  std::string problem;  // why Slurm could not be asked; then all count as there
};
LiveNodes find_live_nodes(const std::vector<std::string>& nodes, std::chrono::milliseconds deadline);
// `states`: "node0 mixed" a line, a node perhaps several times (once a partition).
LiveNodes sort_by_state(const std::vector<std::string>& nodes, std::string_view states);

}  // namespace ananke
