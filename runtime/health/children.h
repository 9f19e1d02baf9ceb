// Work in processes of its own, several at once, each with a deadline: what hangs, even in the kernel, or crashes takes
// nothing with it.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace ananke {

struct ChildTask {
  std::chrono::milliseconds deadline{};  // from its start
  // Runs in the child; what it returns is handed over. An exception's text is an outcome of its own.
  std::function<std::string()> work;
};

struct ChildOutcome {
  enum class End {
    done,
    threw,      // `output` is the text
    crashed,    // `output` says how
    late,       // it was killed at its deadline, or left alone where that did not end it
    not_begun,  // there was no time left, or no process could be made
  };
  End end = End::not_begun;
  std::string output;
  double seconds = 0;
};

// At most `parallel` at once; none lasts past `until`. Outcomes in the order of the tasks. The standard output of a
// child is its standard error. For a process without other threads: children are forked and do not exec.
std::vector<ChildOutcome> run_children(const std::vector<ChildTask>& tasks, int parallel,
                                       std::chrono::steady_clock::time_point until);

}  // namespace ananke
