// The options that every command about a job has: JOB, --ranks, --site, --set, --run-dir, --print-config,
// --print-placement.
#pragma once

#include <string>

#include "launcher/command_options.h"
#include "runtime/config/job.h"

namespace ananke {

class Site;

//   JobArguments job;
//   CommandOptions options("check", "JOB [options]", "...");
//   job.add_to(options);
//   if (!options.read(arguments)) return 0;
//   job.complete(options);
struct JobArguments {
  JobOptions job;              // for load_job
  std::string site = "local";  // for load_site
  bool print_config = false;
  bool print_placement = false;

  void add_to(CommandOptions& options);
  // After reading. Throws Error(usage).
  void complete(const CommandOptions& options);

 private:
  std::string file_, run_dir_;
  long long ranks_ = 0;
};

// load_job, and then what also can be known before anything starts: every parameter of the model has an optimizer, and
// every optimizer rule a parameter; the token stores can be read and their tokens are of the model's vocabulary. Throws
// as load_job does, and Error(data).
LoadedJob load_checked_job(const JobArguments& arguments);

// Prints what the job's arguments ask to see instead of doing anything. False: they ask for nothing.
bool print_instead(const JobArguments& arguments, const LoadedJob& loaded);

// That the job is valid, for what, and the plugins it would load: what `check` and `run --dry-run` print first.
void print_valid(const JobArguments& arguments, const LoadedJob& loaded, const Site& site);

}  // namespace ananke
