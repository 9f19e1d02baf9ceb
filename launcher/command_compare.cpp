// `ananke compare RUN_A RUN_B`: what two run folders have in common and what not.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "launcher/command.h"
#include "launcher/command_options.h"
#include "launcher/compare_runs.h"
#include "launcher/compare_text.h"
#include "runtime/telemetry/json_lines_observer.h"

namespace ananke {
namespace {

// Columns of the terminal; what is written elsewhere is laid out for 100.
std::size_t terminal_width() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::max<std::size_t>(size.ws_col, 60) : 100;
}

}  // namespace

int command_compare(const Arguments& arguments) {
  std::string a, b;
  bool json = false;
  CommandOptions options("compare", "RUN_A RUN_B [options]",
                         "Compares two run folders: the resolved jobs field by field, the loss at every step, the\n"
                         "evaluation of every held-out set, speed, bytes and memory. Runs may differ in length, still\n"
                         "be running or have ended early. Nothing is changed or started.");
  options.add()("json", boost::program_options::bool_switch(&json),
                "print it as one line of JSON; proto/ananke/comparison.proto describes the fields");
  options.word("RUN_A", a);
  options.word("RUN_B", b);
  if (!options.read(arguments)) return 0;
  const RunComparison comparison = compare_runs(a, b);
  const std::string text = json ? to_json_line(comparison) + "\n" : comparison_text(comparison, terminal_width());
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace ananke
