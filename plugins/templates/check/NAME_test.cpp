// The check on recorded nodes: one that is idle, one that is not, and one whose sensor is gone.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "runtime/health/check_set.h"
#include "runtime/plugin/search_path.h"

using namespace ananke;

namespace {

HealthVerdict verdict_with(const char* loadavg) {
  const std::filesystem::path root = std::filesystem::current_path() / "@NAME@_test_node";
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root / "proc");
  if (loadavg) std::ofstream(root / "proc/loadavg") << loadavg;
  const CheckSet checks(Site(), folders_in_variable("ANANKE_PLUGIN_PATH"));
  const NodeHealth node = checks.run({.root = root, .node = "n1"});
  for (const CheckResult& check : node.check()) {
    if (check.id() != "@NAME@.load") continue;
    std::printf("%s: %s\n", HealthVerdict_Name(check.verdict()).c_str(), check.reason().c_str());
    return check.verdict();
  }
  return SKIPPED;
}

}  // namespace

int main() {
  const bool right = verdict_with("0.08 0.03 0.01 1/300 4711\n") == PASS &&
                     verdict_with("71.5 70.2 69.0 72/300 4711\n") == WARN && verdict_with(nullptr) == UNKNOWN;
  std::puts(right ? "ok" : "FAILED");
  return right ? 0 : 1;
}
