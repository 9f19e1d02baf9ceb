// `ananke check JOB`: is this job all right here? Reads the job, the site and the plugins' notes; starts nothing.
#include <cstdio>

#include "launcher/command.h"
#include "launcher/deadlines.h"
#include "launcher/job_environment.h"
#include "launcher/job_options.h"
#include "launcher/run_plan.h"
#include "runtime/config/site.h"

namespace ananke {

int command_check(const Arguments& arguments) {
  JobArguments job;
  CommandOptions options(
      "check", "JOB [options]",
      "Says whether a job file (*.textproto) is all right here: its fields, files and data, and what its\n"
      "plugins say of it. Starts nothing. `run --dry-run` does the same and prints the plan.");
  job.add_to(options);
  if (!options.read(arguments)) return 0;
  job.complete(options);
  const Site site = load_site(job.site);
  const LoadedJob loaded = load_checked_job(job);
  if (print_instead(job, loaded)) return 0;
  stall_limits(site, loaded.job);
  print_environment_warnings(loaded.job, site);
  if (const int refused = ask_plugins(loaded, site); refused != 0) return refused;
  print_valid(job, loaded, site);
  return 0;
}

}  // namespace ananke
