// `ananke supervise RUN_DIR worker ...`: a task of srun. Not for people.
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "launcher/command.h"
#include "launcher/oom_counter.h"
#include "launcher/output.h"
#include "launcher/signal_file.h"
#include "launcher/slurm/task_report.h"
#include "launcher/supervise.h"
#include "launcher/workers.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/process.h"
#include "runtime/bootstrap/node_order.h"

namespace ananke {
namespace {

void tell(const TaskReport& report) {
  const std::string line = to_line(report) + "\n";
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t count = write(STDOUT_FILENO, line.data() + sent, line.size() - sent);
    if (count <= 0) return;  // srun is gone, and the worker hears that from the launcher
    sent += static_cast<std::size_t>(count);
  }
}

std::string step_of_environment() {
  const char* job = std::getenv("SLURM_JOB_ID");
  const char* step = std::getenv("SLURM_STEP_ID");
  return job == nullptr || step == nullptr ? "" : fmt::format("{}.{}", job, step);
}

ExitStatus wait_for(WorkerProcess& worker, SignalFile& signals) {
  for (;;) {
    pollfd ready[2] = {{signals.descriptor(), POLLIN, 0}, {worker.descriptor(), POLLIN, 0}};
    poll(ready, 2, -1);
    for (int number; (number = signals.take()) != 0;) worker.signal(number);
    if (const auto end = worker.reap()) return *end;
  }
}

}  // namespace

int supervise(const std::vector<std::string>& words, const std::function<int(const std::vector<std::string>&)>& work) {
  if (words.size() < 2) fail(ErrorKind::usage, "a supervisor is started by `ananke run`, through srun");
  SignalFile signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};
  std::signal(SIGPIPE, SIG_IGN);
  const EnvironmentLookup lookup = [](const char* name) { return static_cast<const char*>(std::getenv(name)); };
  const Identity me = in_node_order(identify_by_slurm(lookup), lookup);
  TaskReport report{.rank = me.rank, .host = me.host, .step = step_of_environment()};
  const auto oom_before = count_oom_kills();
  try {
    ProcessSpec spec;
    spec.work = [&] { return tell_errors([&] { return work({words.begin() + 1, words.end()}); }); };
    spec.log = log_of(words.front(), me.rank);
    WorkerProcess worker(spec);
    report.process = worker.pid();
    tell(report);
    report.end = wait_for(worker, signals);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ananke: rank %d on %s: %s\n", me.rank, me.host.c_str(), error.what());
    report.end = ExitStatus{.code = static_cast<int>(ErrorKind::resource)};
  }
  const auto oom_after = count_oom_kills();
  report.out_of_memory = report.end->signal == SIGKILL && oom_before && oom_after && *oom_after > *oom_before;
  tell(report);
  return 0;  // a bad exit is told; srun shall not end the others for it
}

int command_supervise(const Arguments& arguments) {
  if (arguments.describe != nullptr) return 0;
  return supervise(arguments.words, [](const std::vector<std::string>& words) {
    for (const Command& command : all_commands()) {
      if (words.front() == command.name) return command.run(std::vector<std::string>(words.begin() + 1, words.end()));
    }
    fail(ErrorKind::usage, "a supervisor starts `ananke worker`, and not '{}'", words.front());
  });
}

}  // namespace ananke
