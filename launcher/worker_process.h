// One worker as a child process: started, signalled with its helpers, reaped.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/control/socket.h"

namespace ananke {

struct ProcessSpec {
  std::string program;                   // file to execute
  std::vector<std::string> arguments;    // argv, argv[0] included
  std::vector<std::string> environment;  // "NAME=value"
  std::filesystem::path log;             // appended to: standard output and error; standard input is empty
};

struct ExitStatus {
  int signal = 0;  // 0: it exited by itself
  int code = 0;
  bool core_dumped = false;
};

class WorkerProcess {
 public:
  // In a process group of its own, so that a terminal's Ctrl-C reaches the launcher alone; killed by the kernel when
  // the thread that constructs this ends. Throws Error(resource).
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
