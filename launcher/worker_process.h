// One worker as a child process: started, signalled with its helpers, reaped.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/control/socket.h"

namespace ananke {

struct ProcessSpec {
  std::string program;                   // file to execute
  // Where set, it is run instead of a program, in a copy of this process, and returns the exit code: no libraries are
  // loaded again. For a process that has no other threads, and whose environment it shares.
  std::function<int()> work = {};
  std::vector<std::string> arguments;    // argv, argv[0] included
  std::vector<std::string> environment;  // "NAME=value"
  std::filesystem::path log;             // appended to: standard output and error; standard input is empty
  int output = -1, errors = -1;          // descriptors to use instead of the log; not owned
  int death_signal = 0;                  // when the thread that started it ends; 0: SIGKILL
};

// This process's environment with these variables set.
std::vector<std::string> changed_environment(const std::vector<std::pair<std::string, std::string>>& changes);
void set_variable(std::vector<std::string>& environment, const std::string& name, const std::string& value);
// Where PATH finds it; `name` itself where nowhere, or where it has a '/'.
std::string find_program(const std::string& name);

struct ExitStatus {
  int signal = 0;  // 0: it exited by itself
  int code = 0;
  bool core_dumped = false;
};

class WorkerProcess {
 public:
  // In a process group of its own, so that a terminal's Ctrl-C reaches the launcher alone; sent its death signal by the
  // kernel when the thread that constructs this ends. Throws Error(resource).
  explicit WorkerProcess(const ProcessSpec& spec);
  // Kills what is left.
  ~WorkerProcess();
  WorkerProcess(WorkerProcess&&) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  int descriptor() const { return handle_.get(); }  // readable once it has ended
  // To the process and its group. Does nothing once it has been reaped.
  void signal(int number) const;
  // How it ended; empty while it runs. Helpers of its group are killed first.
  std::optional<ExitStatus> reap();
  // Nobody waits for it any more: it was killed, and does not end.
  void leave() noexcept { running_ = false; }
  // "running", "stopped (SIGSTOP)", "in uninterruptible sleep ...": what /proc says now.
  std::string state() const;

 private:
  pid_t pid_ = -1;
  bool running_ = false;
  Descriptor handle_;
};

// "SIGKILL".
std::string signal_name(int number);

}  // namespace ananke
