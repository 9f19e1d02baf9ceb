// The `ananke` command: finds the verb, runs it, turns errors into one line and an exit code.
#include <fmt/ranges.h>

#include <cstdio>

#include "ananke/version.h"
#include "launcher/command.h"
#include "launcher/output.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"
#include "runtime/base/printable.h"

namespace ananke {
namespace {

void print_help() {
  std::printf("usage: ananke <command> [options]\n\nPre-trains Mixture-of-Experts transformers.\n\ncommands:\n");
  for (const Command& command : all_commands()) {
    if (!command.hidden) std::printf("  %-20s %s\n", command.name, command.summary);
  }
  std::printf("\n`ananke <command> --help` describes one command, `ananke --version` says which ananke this is.\n");
}

// What could be meant instead.
[[noreturn]] void refuse(const std::vector<std::string>& words) {
  std::vector<std::string> first, second;
  for (const Command& command : all_commands()) {
    if (command.hidden) continue;
    const std::string name = command.name;
    first.push_back(name.substr(0, name.find(' ')));
    if (name.starts_with(words[0] + " ")) second.push_back(name.substr(words[0].size() + 1));
  }
  if (!second.empty() && words.size() == 1) {
    fail(ErrorKind::usage, "{} is no command by itself; a word follows: {}", words[0], fmt::join(second, ", "));
  }
  if (!second.empty()) {
    fail(ErrorKind::usage, "there is no command '{} {}'{}", words[0], printable(words[1], 100),
         suggestion(words[1], second));
  }
  const std::string nearest = nearest_name(words[0], first);
  fail(ErrorKind::usage, "there is no command '{}'{}; `ananke --help` lists them", printable(words[0], 100),
       nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
}

// Verbs may be two words ("data import"): the longest that fits wins.
int dispatch(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_help();
    check_output();
    return words.empty() ? static_cast<int>(ErrorKind::usage) : 0;
  }
  if (words[0] == "--version") {
    std::printf("ananke %s\n", ANANKE_VERSION);
    check_output();
    return 0;
  }
  for (std::size_t length : {2, 1}) {
    if (words.size() < length) continue;
    const std::string verb = length == 2 ? words[0] + " " + words[1] : words[0];
    for (const Command& command : all_commands()) {
      if (verb != command.name) continue;
      const int code =
          command.run(std::vector<std::string>(words.begin() + static_cast<std::ptrdiff_t>(length), words.end()));
      if (!command.console_only) check_output();
      return code;
    }
  }
  refuse(words);
}

}  // namespace
}  // namespace ananke

int main(int argc, char** argv) {
  return ananke::tell_errors([&] { return ananke::dispatch({argv + 1, argv + argc}); });
}
