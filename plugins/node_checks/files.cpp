// File systems that must answer, mounts that somebody left, libraries that this process has twice.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "ananke/site.pb.h"
#include "plugins/node_checks/node_checks.h"
#include "runtime/base/kernel_text.h"
#include "runtime/base/read_file.h"
#include "runtime/base/units.h"

namespace ananke::node_checks {
namespace {

namespace fs = std::filesystem;

struct Mount {
  std::string where, type;
};

// proc/self/mounts; blanks in names stand there as \040.
std::optional<std::vector<Mount>> mounts_of(const fs::path& root) {
  const std::optional<std::string> text = read_file(root / "proc/self/mounts");
  if (!text) return std::nullopt;
  std::vector<Mount> mounts;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string device;
    Mount mount;
    if (words >> device >> mount.where >> mount.type) mounts.push_back(std::move(mount));
  }
  return mounts;
}

CheckResult check_file_system(const CheckContext& context, const HealthFileSystem& expected) {
  Findings found(context);
  const std::string& path = expected.path();
  if (expected.mount()) {
    const auto mounts = mounts_of(context.root);
    if (!mounts) {
      found.unknown("/proc/self/mounts cannot be read");
    } else if (std::ranges::find(*mounts, path, &Mount::where) == mounts->end()) {
      found.fail(DEFECT, path + " is not mounted");
      return found.result("");
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  const fs::path here = context.root / fs::path(path).relative_path();
  struct stat facts {};
  std::error_code error;
  if (stat(here.c_str(), &facts) != 0) error = {errno, std::generic_category()};
  if (!error && S_ISDIR(facts.st_mode)) {
    const fs::directory_iterator first(here, error);  // reads its first entries
  } else if (!error) {
    std::ifstream file(here, std::ios::binary);
    char byte = 0;
    if (!file.read(&byte, 1) && facts.st_size > 0) error = {EIO, std::generic_category()};
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (error) found.fail(DEFECT, fmt::format("{}: {}", path, error.message()));
  found.number("seconds", "", seconds, "s");
  found.judge("seconds", seconds, fmt::format("{} answers after {}", path, format_duration(seconds)));
  return found.result(path + " answers");
}

CheckResult check_residual(const CheckContext& context) {
  Findings found(context);
  const auto mounts = mounts_of(context.root);
  if (!mounts || mounts->empty()) found.unknown("/proc/self/mounts cannot be read, or is empty");
  for (const Mount& mount : mounts.value_or(std::vector<Mount>{})) {
    const bool left =
        mount.type.find("squashfuse") != std::string::npos || mount.type.find("gocryptfs") != std::string::npos;
    if (left)
      found.warn(fmt::format("{} is still mounted at {}", mount.type, mount.where), "fusermount -u " + mount.where);
  }
  return found.result("no mount of an earlier job is left");
}

// "libnccl.so.2.28.9" -> "libnccl"; empty: no library.
std::string library_name(const std::string& path) {
  const std::string file = path.substr(path.rfind('/') + 1);
  const auto end = file.find(".so");
  return end == std::string::npos || !file.starts_with("lib") ? "" : file.substr(0, end);
}

// Of two NCCLs or two C++ libraries in a process one is used here and the other there.
CheckResult check_twice(const CheckContext& context) {
  Findings found(context);
  const std::optional<std::string> text = read_file(context.root / "proc/self/maps");
  std::map<std::string, std::set<std::string>> files;
  std::istringstream lines(text.value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const auto slash = line.find('/');
    if (slash == std::string::npos) continue;
    const std::string name = library_name(line.substr(slash));
    if (!name.empty()) files[name].insert(line.substr(slash));
  }
  if (files.empty()) found.unknown("/proc/self/maps cannot be read, or names no library");
  for (const auto& [name, paths] : files) {
    if (paths.size() < 2) continue;
    found.fail(SETTING,
               fmt::format("{} is loaded {} times: {}", name, paths.size(), joined({paths.begin(), paths.end()})),
               "see LD_LIBRARY_PATH, LD_PRELOAD and loaded modules: one place should give it");
  }
  return found.result(fmt::format("{} libraries, each once", files.size()));
}

}  // namespace

std::vector<NodeCheck> file_checks(const Site& site) {
  std::vector<NodeCheck> checks = {
      {{.id = "fs.residual",
        .description = "mounts of containers and encrypted folders that earlier jobs left",
        .sensors = {"proc/self/mounts"}},
       check_residual},
      {{.id = "lib.twice",
        .description = "libraries that this program and its plugins load from two places",
        .sensors = {"proc/self/maps"}},
       check_twice},
  };
  for (const HealthFileSystem& one : site.health().file_system()) {
    std::vector<std::string> sensors = {fs::path(one.path()).relative_path()};
    if (one.mount()) sensors.push_back("proc/self/mounts");
    checks.push_back({{.id = "fs." + one.path(),
                       .description = "the file system answers",
                       .deadline = std::chrono::seconds(15),
                       .when_late = FAIL,
                       .thresholds = {{"seconds", "s", false, {}, 5.0, "until it answers"}},
                       .sensors = std::move(sensors)},
                      [one](const CheckContext& context) { return check_file_system(context, one); }});
  }
  return checks;
}

}  // namespace ananke::node_checks
