// A site's profile beside the machine that this process is on: what is as it says, what differs, what cannot be found
// out here.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "launcher/nccl_environment.h"

namespace ananke {

struct SiteFact {
  enum class Verdict { same, differs, unknown };
  Verdict verdict = Verdict::unknown;
  std::string what;      // "CPUs", "partition booster"
  std::string expected;  // as the profile has it
  std::string found;     // or why it is not known
};

struct SiteCheckOptions {
  std::filesystem::path root = "/";            // holds proc and sys
  std::string host;                            // this node's name
  std::chrono::milliseconds deadline{10'000};  // of each command that is asked
  Environment environment;
};

// Facts of a compute node and of its Slurm, in the order of the profile; what the profile leaves out is not among them.
// Commands asked: nvidia-smi, sinfo, srun, stat. Changes nothing.
std::vector<SiteFact> check_site(const Site& site, const SiteCheckOptions& options);

}  // namespace ananke
