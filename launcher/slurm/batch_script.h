// The script that `ananke submit` gives to sbatch: a template with words in double braces, and what replaces them.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "launcher/slurm/probe.h"

namespace ananke {

class Site;

struct BatchRequest {
  std::string job_name;
  int nodes = 1;
  int spares = 0;  // nodes beyond those
  int ranks_per_node = 1;
  std::chrono::seconds time_limit{};
  std::chrono::seconds lead_time{};
  std::filesystem::path run_dir;     // absolute
  std::vector<std::string> command;  // words; not yet quoted
  bool requeue = true;               // by Slurm too, when a node is lost
  std::string after = {};            // the job that must have ended before; empty: none
};

// train.sbatch beside the site's own file, else the one of the folder of sites. Throws Error(config).
std::filesystem::path find_template(const std::string& site);

// Replaces every {{word}}. A word that stands for several lines is a line of its own; where it stands for none, the
// line goes. Throws Error(config) with file and line for a word that is not known.
std::string fill_template(const std::string& text, const std::map<std::string, std::string>& words,
                          const std::string& file);

// The words of a request at a site, in the forms of this version of Slurm (the newest's where it is not known).
std::map<std::string, std::string> batch_words(const BatchRequest& request, const Site& site,
                                               const SlurmVersion& version);

// As Slurm reads it: "1-02:03:04".
std::string slurm_time(std::chrono::seconds time);

}  // namespace ananke
