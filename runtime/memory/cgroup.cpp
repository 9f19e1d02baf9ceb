#include "runtime/memory/cgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "runtime/base/kernel_text.h"
#include "runtime/base/read_file.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t no_limit = std::uint64_t{1} << 60;  // version 1 writes a huge number where there is none

// How one version names what it counts.
struct Version {
  const char* mount;
  std::array<const char*, 2> limits;  // the second may be null
  const char* used;
  const char* prefix;  // of the names in memory.stat that count the groups below as well
  const char *dirty, *writeback;
};

constexpr Version second{"sys/fs/cgroup", {"memory.max", "memory.high"}, "memory.current", "", "file_dirty",
                         "file_writeback"};
constexpr Version second_beside_first{
    "sys/fs/cgroup/unified", {"memory.max", "memory.high"}, "memory.current", "", "file_dirty", "file_writeback"};
constexpr Version first{"sys/fs/cgroup/memory",
                        {"memory.limit_in_bytes", nullptr},
                        "memory.usage_in_bytes",
                        "total_",
                        "dirty",
                        "writeback"};

std::uint64_t reclaimable(const fs::path& group, const Version& version) {
  const KernelTable stat = parse_kernel_table(read_file(group / "memory.stat").value_or(""));
  const auto value = [&](const std::string& name) {
    const auto found = stat.find(version.prefix + name);
    return found == stat.end() ? 0 : found->second;
  };
  const std::uint64_t cache = value("inactive_file") + value("active_file");
  return cache - std::min(cache, value(version.dirty) + value(version.writeback));
}

void read_group(const fs::path& root, const Version& version, const fs::path& path, CgroupReading& reading) {
  const fs::path group = root / version.mount / path.relative_path();
  for (const char* file : version.limits) {
    if (!file) continue;
    const std::optional<std::string> text = read_file(group / file);
    std::error_code none;
    if (!text && file == version.limits[0] && fs::exists(group / version.used, none)) {
      reading.trouble.push_back(
          fmt::format("control group {} has {} but no {}: its limit is not known", path.string(), version.used, file));
    }
    if (!text || text->starts_with("max")) continue;
    const std::optional<std::uint64_t> limit = parse_number(*text);
    if (!limit) {
      reading.trouble.push_back(fmt::format("{} of control group {} is '{}', no number", file, path.string(),
                                            text->substr(0, text->find('\n'))));
      continue;
    }
    if (*limit >= no_limit) continue;
    const std::optional<std::uint64_t> used = parse_number(read_file(group / version.used).value_or(""));
    if (!used) {
      reading.trouble.push_back(fmt::format("control group {} has {} but no {}; all of it counts as used",
                                            path.string(), file, version.used));
    }
    CgroupLimit& entry = reading.limits.emplace_back();
    entry.set_path(path.string());
    entry.set_file(file);
    entry.set_limit(*limit);
    entry.set_used(used.value_or(*limit));
    entry.set_reclaimable(used ? std::min(reclaimable(group, version), *used) : 0);
  }
}

void read_upwards(const fs::path& root, const Version& version, const std::string& own, CgroupReading& reading) {
  for (fs::path path = own.starts_with("/..") ? "/" : own;; path = path.parent_path()) {
    read_group(root, version, path, reading);
    if (!path.has_relative_path()) return;
  }
}

}  // namespace

CgroupReading read_cgroup_limits(const fs::path& root) {
  CgroupReading reading;
  const std::optional<std::string> groups = read_file(root / "proc/self/cgroup");
  if (!groups) return reading;
  for (std::size_t at = 0; at < groups->size();) {
    const std::size_t end = std::min(groups->find('\n', at), groups->size());
    const std::string line = groups->substr(at, end - at);  // "0::/user.slice", "4:cpuset,memory:/job"
    at = end + 1;
    const std::size_t names = line.find(':'), path = names == std::string::npos ? names : line.find(':', names + 1);
    if (path == std::string::npos) continue;
    const std::string controllers = "," + line.substr(names + 1, path - names - 1) + ",", own = line.substr(path + 1);
    if (controllers == ",,") {
      read_upwards(root, second, own, reading);
      read_upwards(root, second_beside_first, own, reading);
    } else if (controllers.find(",memory,") != std::string::npos) {
      read_upwards(root, first, own, reading);
    }
  }
  return reading;
}

}  // namespace ananke
