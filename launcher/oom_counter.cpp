#include "launcher/oom_counter.h"

#include <fstream>
#include <string>

namespace ananke {

std::optional<std::uint64_t> count_oom_kills() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    std::ifstream events("/sys/fs/cgroup" + line.substr(3) + "/memory.events");
    std::string name;
    for (std::uint64_t value = 0; events >> name >> value;) {
      if (name == "oom_kill") return value;
    }
  }
  return std::nullopt;
}

}  // namespace ananke
