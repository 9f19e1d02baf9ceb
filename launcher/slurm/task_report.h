// What the supervisor of a worker tells the launcher through srun's standard output: a line when the worker has
// started, and one when it has ended.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/worker_process.h"

namespace ananke {

struct TaskReport {
  int rank = 0;
  int process = 0;
  std::string host = {};  // as Slurm names the node
  std::string step = {};  // "1234.0"
  std::optional<ExitStatus> end = {};
  bool out_of_memory = false;  // the kernel killed it for want of memory
};

std::string to_line(const TaskReport& report);  // without a newline
// Nothing where it is another line.
std::optional<TaskReport> parse_report(std::string_view line);

}  // namespace ananke
