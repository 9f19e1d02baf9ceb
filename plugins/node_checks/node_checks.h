// The checks of this plugin, by what they look at. All read below context.root and never as another user, so that
// nobody needs to be root; none writes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/health/findings.h"
#include "runtime/roles/check.h"

namespace ananke::node_checks {

struct NodeCheck {
  CheckSpec spec;
  std::function<CheckResult(const CheckContext&)> run;
};

std::vector<NodeCheck> memory_checks(const Site& site);   // memory.cpp
std::vector<NodeCheck> gpu_checks(const Site& site);      // gpus.cpp
std::vector<NodeCheck> network_checks(const Site& site);  // network.cpp
std::vector<NodeCheck> file_checks(const Site& site);     // files.cpp: file systems, libraries
std::vector<NodeCheck> quota_checks(const Site& site);    // quotas.cpp
std::vector<NodeCheck> system_checks(const Site& site);   // system.cpp: processes, limits, clock, kernel

// The file's text without blanks and line ends around it.
std::optional<std::string> line_of(const std::filesystem::path& file);
// Names in a folder, sorted; none where it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder);
std::string joined(const std::vector<std::string>& words, const char* between = ", ");

// "process 4711 (python3) of user 1000", as far as /proc says.
std::string describe_process(const std::filesystem::path& root, unsigned process);

}  // namespace ananke::node_checks
