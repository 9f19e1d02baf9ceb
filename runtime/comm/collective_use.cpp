#include "runtime/comm/collective_use.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ananke {

std::vector<CollectiveUse> largest_of(std::vector<CollectiveUse> uses, int expert_axis) {
  std::map<std::pair<std::string, CollectiveKind>, std::uint64_t> largest;
  for (CollectiveUse& use : uses) {
    if (use.bytes == 0) continue;
    if (use.axis == "expert_shard" && expert_axis == 1) use.axis = "shard";
    std::uint64_t& bytes = largest[{use.axis, use.kind}];
    bytes = std::max(bytes, use.bytes);
  }
  std::vector<CollectiveUse> result;
  for (const auto& [key, bytes] : largest) result.push_back({key.first, key.second, bytes});
  return result;
}

}  // namespace ananke
