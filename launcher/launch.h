// Runs a job's workers, on this node or those of an allocation, with the control channel, and says how the job ended.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/first_cause.h"
#include "runtime/control/control_server.h"

namespace ananke {

struct LaunchSpec {
  std::string program;                                           // file to execute
  std::vector<std::string> arguments;                            // argv of every worker, argv[0] included
  std::vector<std::pair<std::string, std::string>> environment;  // set on top of this process's own
  int ranks = 1;
  std::filesystem::path run_dir;  // exists; logs/rank-N.log are appended to
  ControlDeadlines deadlines;
  std::chrono::milliseconds grace{2'000};  // from the request to leave (and TERM) to KILL, once the job has failed
  // Whether a second TERM ends the job at once. Slurm sends one again at the end of the time, and then gives some more.
  bool second_term_ends = true;
  // A line for the console: workers' lines and the launcher's notices. Must not block. Called from within launch.
  std::function<void(const std::string& line)> console;
  // Why the run folder is no longer this job's, or nothing: asked every second, and ends the job. May be empty.
  std::function<std::string()> lost;
};

struct LaunchResult {
  int exit_code = 0;           // 0, or the value of an ErrorKind
  bool stopped = false;        // a stop was requested
  bool by_keyboard = false;    // by Ctrl-C
  std::optional<Cause> cause;  // of a failure
  std::string report;          // of a failure: several lines, without a trailing newline
};

class Workers;  // launcher/workers.h

// Environment of every worker besides what says who it is.
constexpr const char* control_variable = "ANANKE_CONTROL";  // host:port
constexpr const char* secret_variable = "ANANKE_SECRET";

// Blocks until every worker has ended. While it runs, INT, TERM, HUP, USR1 and USR2 to this process become a request to
// stop after a step and a checkpoint; a second INT, or a second TERM after a second's time (see LaunchSpec), ends the
// job at once. Other threads of the caller should have these signals blocked. Throws Error(resource) where the workers
// cannot be started.
LaunchResult launch(const LaunchSpec& spec, Workers& workers);

// With workers on this node. Once per process (see PmixServer).
LaunchResult launch_local(const LaunchSpec& spec);

}  // namespace ananke
