// `ananke run --dry-run`: what the run would do, and everything it would be refused for before it starts.
#pragma once

namespace ananke {

class Site;
struct LoadedJob;  // runtime/config/job.h

// Prints the plan and returns the exit code; changes no file and starts no worker. The job's plugins are loaded, in a
// process of their own, so that one that crashes is told of as in a run. Throws what the run would before its workers
// start, in the same order. For a process without other threads.
int print_run_plan(const LoadedJob& loaded, const Site& site, bool resume);

}  // namespace ananke
