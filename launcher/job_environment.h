// The environment that a job is started in, judged for that job.
#pragma once

#include <string>
#include <vector>

#include "launcher/nccl_environment.h"

namespace ananke {

class Job;

// What to tell who starts the job, a line each: variables of the environment that are strange, and those of the site
// that somebody has set otherwise. Nothing for a job on backend_host, which reads none of them. `job` is resolved.
// Throws Error(config) naming every variable that would break it.
std::vector<std::string> check_job_environment(const Job& job, const Site& site, const Environment& environment);

// Prints them, of this process's environment.
void print_environment_warnings(const Job& job, const Site& site);

}  // namespace ananke
