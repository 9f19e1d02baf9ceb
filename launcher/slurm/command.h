// A command of Slurm (or any other) that is asked something: never waited for longer than a deadline.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace ananke {

struct CommandOutput {
  int code = 0;           // exit code; 128 + signal; 127: it could not be executed
  std::string output;     // standard output
  std::string errors;     // standard error; where it could not be executed, why
  bool late = false;      // it was killed at the deadline
  bool too_much = false;  // it was killed because it said too much
};

// Runs words[0], found through PATH, with an empty standard input and this process's environment changed by
// `environment`. Killed with its children at the deadline, or when it says more than `most_output`; left to itself
// where that does not end it. Throws Error(resource) only where no process can be started.
CommandOutput run_command(const std::vector<std::string>& words, std::chrono::milliseconds deadline,
                          const std::vector<std::pair<std::string, std::string>>& environment = {},
                          std::size_t most_output = 16 << 20);

// The standard output. Throws Error(stalled) for one that was late, Error(resource) for one that failed: the command as
// typed, its exit code and its last lines.
std::string output_of(const std::vector<std::string>& words, std::chrono::milliseconds deadline);

// "`sinfo -h` ended with exit code 1: last lines", or "... did not end within 10 s ...".
std::string describe_failure(const std::vector<std::string>& words, const CommandOutput& result,
                             std::chrono::milliseconds deadline);

// As a shell would have to be given it.
std::string quote_word(const std::string& word);
std::string quote_words(const std::vector<std::string>& words);

// The last `count` lines that are not empty, joined by " | ".
std::string last_lines_of(const std::string& text, std::size_t count = 3);

}  // namespace ananke
