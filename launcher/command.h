// The verbs of the `ananke` command. Each is one file of this folder; commands.cpp is the one hand-kept list.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ananke {

struct CommandText;  // launcher/command_options.h

// The words after the verb. With `describe` set nothing is run: the verb fills in what it takes and returns, which
// CommandOptions::read() does for it.
struct Arguments {
  Arguments() = default;
  Arguments(std::vector<std::string> given) : words(std::move(given)) {}
  Arguments(std::initializer_list<std::string> given) : words(given) {}
  std::vector<std::string> words;
  CommandText* describe = nullptr;
};

struct Command {
  const char* name;     // "run", "data import"
  const char* summary;  // one line for --help
  // Returns the exit code; may throw Error, whose kind becomes the exit code.
  int (*run)(const Arguments& arguments);
  bool hidden = false;  // not listed in --help: started by the launcher itself
  // What it prints is beside its work, which shall not fail where nobody can take that. Of others it is the product.
  bool console_only = false;
};

std::span<const Command> all_commands();

}  // namespace ananke
