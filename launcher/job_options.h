// The options that every command about a job has: JOB, --ranks, --site, --set, --run-dir, --print-config,
// --print-placement.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/job.h"

namespace boost::program_options {
class options_description;
class variables_map;
}  // namespace boost::program_options

namespace ananke {

class Site;

struct JobArguments {
  JobOptions job;              // for load_job
  std::string site = "local";  // for load_site
  bool print_config = false;
  bool print_placement = false;
  bool help = false;  // the help was printed: leave with 0
};

// Reads the words after the verb. `own` are the command's own options, `values` takes what was said of them; both may
// be null. Throws Error(usage) naming the word, with the nearest option for a mistyped one.
JobArguments parse_job_arguments(const std::vector<std::string>& words, const std::string& verb,
                                 const boost::program_options::options_description* own = nullptr,
                                 boost::program_options::variables_map* values = nullptr);

// That the job is valid, for what, and the plugins it would load: what `check` and `run --dry-run` print first.
void print_valid(const JobArguments& arguments, const LoadedJob& loaded, const Site& site);

// load_job, and then what also can be known before anything starts: every parameter of the model has an optimizer, and
// every optimizer rule a parameter; the token stores can be read and their tokens are of the model's vocabulary. Throws
// as load_job does, and Error(data).
LoadedJob load_checked_job(const JobArguments& arguments);

// Prints what the job's arguments ask to see instead of doing anything. False: they ask for nothing.
bool print_instead(const JobArguments& arguments, const LoadedJob& loaded);

}  // namespace ananke
