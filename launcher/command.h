// The verbs of the `ananke` command. Each is one file of this folder; commands.cpp is the one hand-kept list.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace ananke {

struct Command {
  const char* name;     // "run", "data import"
  const char* summary;  // one line for --help
  // Arguments after the verb. Returns the exit code; may throw Error, whose kind becomes the exit code.
  int (*run)(const std::vector<std::string>& arguments);
  bool hidden = false;  // not listed in --help: started by the launcher itself
};

std::span<const Command> all_commands();

}  // namespace ananke
