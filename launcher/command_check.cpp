// `ananke check JOB`: is this job all right here? Reads the job, the site and the plugins' notes; starts nothing.
#include <cstdio>

#include "launcher/command.h"
#include "launcher/job_options.h"
#include "runtime/comm/mesh.h"
#include "runtime/config/site.h"
#include "runtime/config/validate.h"

namespace ananke {

int command_check(const std::vector<std::string>& words) {
  const JobArguments arguments = parse_job_arguments(words, "check");
  if (arguments.help) return 0;
  const Site site = load_site(arguments.site);
  const LoadedJob loaded = load_checked_job(arguments);
  if (print_instead(arguments, loaded)) return 0;
  const Job& job = loaded.job;
  std::printf("%s: job '%s' is valid for %u ranks (%s) at site %s\n", arguments.job.file.c_str(), job.name().c_str(),
              job.resolved().ranks(), to_string(mesh_of(job.mesh())).c_str(), site.name().c_str());
  for (const std::string& remark : remarks_on(job)) std::printf("note: %s\n", remark.c_str());
  for (const PluginFile& plugin : job.resolved().plugins()) {
    std::printf("  %-12s %-20s %s\n", plugin.role().c_str(), plugin.name().c_str(), plugin.path().c_str());
  }
  return 0;
}

}  // namespace ananke
