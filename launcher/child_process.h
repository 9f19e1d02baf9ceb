// Work that loads a job's plugins, apart from this process: one that crashes is told of.
#pragma once

#include <functional>

namespace ananke {

// Forks and runs `work` there; its errors are printed. The exit code: 0, or of the error. Throws Error(worker_failed)
// where the child was ended by a signal: `what` names it ("the dry run"). For a process without other threads.
int run_in_child(const char* what, const std::function<void()>& work);

}  // namespace ananke
