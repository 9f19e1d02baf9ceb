// `ananke run --dry-run`, `check` and `submit`: what the run would do, and everything it would be refused for before it
// starts.
#pragma once

namespace ananke {

class Site;
struct LoadedJob;  // runtime/config/job.h

// What the job's plugins would refuse it for when its workers start: a type that the backend has no operators for, a
// store that is not there. Prints that, and returns 0 or the exit code. They are loaded as for the plan. A node to log
// in on may lack what they need: where they cannot be loaded that is said, and is no refusal.
int ask_plugins(const LoadedJob& loaded, const Site& site);

// Prints the plan and returns the exit code; changes no file and starts no worker. The job's plugins are loaded, in a
// process of their own, so that one that crashes is told of as in a run. Throws what the run would before its workers
// start, in the same order. For a process without other threads.
int print_run_plan(const LoadedJob& loaded, const Site& site, bool resume);

}  // namespace ananke
