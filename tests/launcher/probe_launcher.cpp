// Launches a probe worker: probe_launcher RUN_DIR RANKS PROBE ACTION [RANK]. Prints the console, then the report. With
// PROBE_PATIENT in its environment a second TERM does not end the job.
#include <cstdio>
#include <cstdlib>

#include "launcher/launch.h"

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  ananke::LaunchSpec spec;
  spec.run_dir = argv[1];
  spec.ranks = std::atoi(argv[2]);
  spec.program = argv[3];
  spec.arguments = {argv + 3, argv + argc};
  spec.second_term_ends = std::getenv("PROBE_PATIENT") == nullptr;
  spec.console = [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  try {
    const ananke::LaunchResult result = ananke::launch_local(spec);
    std::printf("%s\n", result.report.c_str());
    return result.exit_code;
  } catch (const ananke::Error& error) {
    std::printf("error: %s\n", error.what());
    return static_cast<int>(error.kind());
  }
}
