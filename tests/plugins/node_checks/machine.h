// A recorded node as a folder, and the checks of plugin node_checks alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/config/site.h"
#include "runtime/health/check_set.h"
#include "runtime/health/report.h"
#include "tests/runtime/memory/node_trees.h"

namespace ananke {

class Machine {
 public:
  static constexpr unsigned user = 4242;  // whose the recorded `ananke` was
  static constexpr int process = 1000;

  // A tree of its memory (tests/runtime/memory/fixtures), then what it has beside that; later ones replace files.
  Machine(const std::string& memory, const std::vector<std::string>& parts) {
    unpack_tree(memory, root());
    for (const std::string& part : parts) unpack("tests/plugins/node_checks/fixtures/" + part + ".txt", root());
  }
  const std::filesystem::path& root() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

// A folder that holds node_checks.so alone: other plugins of the build may be of role check, too.
class NodeChecksFolder {
 public:
  NodeChecksFolder() {
    std::filesystem::create_symlink(ANANKE_BINARY_DIR "/lib/ananke/node_checks.so", folder_ / "node_checks.so");
  }
  std::vector<std::filesystem::path> folders() const { return {folder_.path()}; }

 private:
  TemporaryFolder folder_;
};

// Of a machine: the recorded user and process, and no hurry.
inline CheckOptions options_for(const Machine& machine) {
  CheckOptions options;
  options.root = machine.root();
  options.node = "n1";
  options.user = Machine::user;
  options.process = Machine::process;
  options.patience = 30;
  return options;
}

inline HealthReport health_of(const Machine& machine, const Site& site) {
  const NodeChecksFolder plugin;
  const CheckSet checks(site, plugin.folders());
  const NodeHealth node = checks.run(options_for(machine));
  return make_report({{.node = "n1", .health = node, .why_not = ""}}, site, QUICK, "", {});
}

inline const CheckResult& result_of(const NodeHealth& node, const std::string& id) {
  for (const CheckResult& check : node.check()) {
    if (check.id() == id) return check;
  }
  static const CheckResult none;
  ADD_FAILURE() << "there is no check " << id;
  return none;
}

}  // namespace ananke
