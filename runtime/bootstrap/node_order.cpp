#include "runtime/bootstrap/node_order.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {

Identity in_node_order(Identity identity, const EnvironmentLookup& lookup) {
  const char* value = lookup(nodes_variable);
  if (value == nullptr || *value == '\0') return identity;
  std::vector<std::string_view> nodes;
  for (std::string_view rest = value;;) {
    const std::size_t comma = rest.find(',');
    nodes.push_back(rest.substr(0, comma));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  const auto found = std::ranges::find(nodes, std::string_view(identity.host));
  if (found == nodes.end()) {
    fail(ErrorKind::config,
         "this worker is on node '{}' (by {}), which is none of the {} nodes that the launcher named ({}, ...): were "
         "the workers started by something else?",
         identity.host, identity.source, nodes.size(), nodes.front());
  }
  const int count = static_cast<int>(nodes.size());
  if (identity.local_size * count != identity.size) {
    fail(ErrorKind::config,
         "node {} has {} workers (by {}), but {} workers on {} nodes are {} on each; a node cannot take more or fewer "
         "than the others",
         identity.host, identity.local_size, identity.source, identity.size, count,
         static_cast<double>(identity.size) / count);
  }
  identity.node_index = static_cast<int>(found - nodes.begin());
  identity.rank = identity.node_index * identity.local_size + identity.local_rank;
  return identity;
}

}  // namespace ananke
