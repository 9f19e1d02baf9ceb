// `ananke check JOB`: is this job all right here? Reads the job, the site and the plugins' notes; starts nothing.
#include <cstdio>

#include "launcher/command.h"
#include "launcher/job_options.h"
#include "runtime/config/site.h"

namespace ananke {

int command_check(const std::vector<std::string>& words) {
  const JobArguments arguments = parse_job_arguments(words, "check");
  if (arguments.help) return 0;
  const Site site = load_site(arguments.site);
  const LoadedJob loaded = load_checked_job(arguments);
  if (print_instead(arguments, loaded)) return 0;
  print_valid(arguments, loaded, site);
  return 0;
}

}  // namespace ananke
