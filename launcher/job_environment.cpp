#include "launcher/job_environment.h"

#include <algorithm>
#include <cstdio>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

bool has_devices(const Job& job) {
  return std::ranges::any_of(job.resolved().plugins(), [](const PluginFile& plugin) {
    return plugin.role() == "backend" && plugin.name() != "backend_host";
  });
}

}  // namespace

std::vector<std::string> check_job_environment(const Job& job, const Site& site, const Environment& environment) {
  if (!has_devices(job)) return {};
  std::vector<std::string> warnings;
  std::string refused;
  int count = 0;
  const EnvironmentUse use{static_cast<int>(job.resolved().ranks()), site.start() == Site::SRUN};
  for (const EnvironmentFinding& finding : lint_environment(with_site_variables(environment, site), site, use)) {
    if (finding.refuse) {
      refused += "\n  " + finding.text;
      ++count;
    } else {
      warnings.push_back(finding.text);
    }
  }
  if (count > 0) {
    fail(ErrorKind::config, "{} of the environment's variables would break the job:{}", count, refused);
  }
  for (const SiteVariable& variable : site.environment().variable()) {
    const auto set = environment.find(variable.name());
    if (set == environment.end() || set->second == variable.value()) continue;
    warnings.push_back(fmt::format("{}='{}' is kept, where site '{}' would set '{}': {}", variable.name(), set->second,
                                   site.name(), variable.value(), variable.why()));
  }
  return warnings;
}

void print_environment_warnings(const Job& job, const Site& site) {
  for (const std::string& warning : check_job_environment(job, site, this_environment())) {
    std::fprintf(stderr, "ananke: warning: %s\n", warning.c_str());
  }
}

}  // namespace ananke
