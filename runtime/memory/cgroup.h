// Memory limits of control groups, both versions: those of the own group and of every group above it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ananke/memory.pb.h"

namespace ananke {

struct CgroupReading {
  std::vector<CgroupLimit> limits;   // that there are, the nearest first; none: nothing limits
  std::vector<std::string> trouble;  // files that should be there and are not, or are damaged
};

// proc/self/cgroup, sys/fs/cgroup below `root`. Where the own group is not visible (a container with a view of its own)
// the groups above it are looked at.
CgroupReading read_cgroup_limits(const std::filesystem::path& root);

}  // namespace ananke
