#include "runtime/topology/rank_map.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace ananke {
namespace {

using Nodes = std::vector<NodePlace>;

struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const { return natural_less(a, b); }
};
using ByLabel = std::map<std::string, Nodes, NaturalLess>;

void move_to(Nodes& to, Nodes& from, std::size_t count) {
  const auto end = from.begin() + static_cast<std::ptrdiff_t>(count);
  std::move(from.begin(), end, std::back_inserter(to));
  from.erase(from.begin(), end);
}

ByLabel grouped_by(std::string NodePlace::*label, const Nodes& nodes) {
  ByLabel parts;
  for (const NodePlace& node : nodes) parts[node.*label].push_back(node);
  return parts;
}

// The largest parts first, those of equal size by their labels.
std::vector<Nodes> largest_first(ByLabel parts) {
  std::vector<Nodes> sorted;
  for (auto& [label, nodes] : parts) sorted.push_back(std::move(nodes));
  std::ranges::stable_sort(sorted, std::ranges::greater(), [](const Nodes& part) { return part.size(); });
  return sorted;
}

// `need` of them: whole groups, then whole racks of the last one.
Nodes choose(const Nodes& nodes, std::size_t need) {
  Nodes chosen;
  for (Nodes& group : largest_first(grouped_by(&NodePlace::group, nodes))) {
    for (Nodes& rack : largest_first(grouped_by(&NodePlace::rack, group))) {
      move_to(chosen, rack, std::min(need - chosen.size(), rack.size()));
    }
  }
  return chosen;
}

bool by_rack_and_name(const NodePlace& a, const NodePlace& b) {
  return a.rack != b.rack ? natural_less(a.rack, b.rack) : natural_less(a.node, b.node);
}

// Indices of groups, the earliest that will do, whose sizes add up to `sum`; empty where none do.
std::vector<std::size_t> find_exact(const std::vector<Nodes>& groups, std::size_t sum) {
  constexpr std::size_t none = ~std::size_t{0};
  std::vector<std::size_t> last(sum + 1, none);  // the group that first reached a sum
  for (std::size_t group = 0; group < groups.size() && last[sum] == none; ++group) {
    const std::size_t size = groups[group].size();
    if (size == 0) continue;
    for (std::size_t reached = sum; reached >= size; --reached) {
      const std::size_t before = reached - size;
      if (last[reached] == none && (before == 0 || last[before] != none)) last[reached] = group;
    }
  }
  std::vector<std::size_t> chosen;
  if (last[sum] == none) return chosen;
  for (std::size_t left = sum; left > 0; left -= groups[last[left]].size()) chosen.push_back(last[left]);
  std::ranges::reverse(chosen);
  return chosen;
}

// Groups in such an order that, cut every `replica` nodes, few of them are cut. What fills replicas exactly comes
// first: parts of a group alone, then groups that add up to one replica, to two, ...; the rest stays in order.
Nodes order_groups(std::vector<Nodes> groups, std::size_t replica) {
  Nodes ordered;
  std::size_t left = 0;
  for (Nodes& group : groups) {
    move_to(ordered, group, group.size() / replica * replica);
    left += group.size();
  }
  for (std::size_t replicas = 1; 2 * replicas * replica <= left; ++replicas) {
    for (;;) {
      const std::vector<std::size_t> exact = find_exact(groups, replicas * replica);
      if (exact.empty()) break;
      for (const std::size_t group : exact) move_to(ordered, groups[group], groups[group].size());
      left -= replicas * replica;
    }
  }
  for (Nodes& group : groups) move_to(ordered, group, group.size());
  return ordered;
}

void add_notices(RankMap& map) {
  const MeshShape& mesh = map.mesh;
  if (mesh.expert > 1 && map.ranks_per_node % mesh.expert != 0) {
    map.notices.push_back(fmt::format(
        "the expert axis of {} ranks does not lie inside of nodes of {} ranks: tokens travel between nodes; an expert "
        "axis that divides the ranks of a node does not",
        mesh.expert, map.ranks_per_node));
  }
  if (mesh.replicate > 1 && mesh.shard % map.ranks_per_node != 0 && map.ranks_per_node % mesh.shard != 0) {
    map.notices.push_back(fmt::format("replicas of {} ranks share nodes of {}", mesh.shard, map.ranks_per_node));
  }
}

}  // namespace

std::vector<std::string> RankMap::node_names() const {
  std::vector<std::string> names;
  for (const NodePlace& node : nodes) names.push_back(node.node);
  return names;
}

std::string RankMap::hash() const {
  std::string text = fmt::format("{} {} {} {}", mesh.replicate, mesh.shard, mesh.expert, ranks_per_node);
  for (const NodePlace& node : nodes) text += "\n" + node.node;
  return fmt::format("{:016x}", hash64(text));
}

RankMap map_ranks(const std::vector<NodePlace>& nodes, const MeshShape& mesh, int ranks_per_node) {
  ANANKE_CHECK(ranks_per_node > 0, "{} ranks on a node", ranks_per_node);
  if (mesh.ranks() % ranks_per_node != 0) {
    fail(ErrorKind::config, "{} ranks ({}) are no multiple of the {} that a node takes; change the mesh or that",
         mesh.ranks(), to_string(mesh), ranks_per_node);
  }
  const auto need = static_cast<std::size_t>(mesh.ranks() / ranks_per_node);
  if (nodes.size() < need) {
    fail(ErrorKind::config, "{} ranks ({}) at {} a node need {} nodes, and there are {}", mesh.ranks(), to_string(mesh),
         ranks_per_node, need, nodes.size());
  }
  RankMap map{mesh, ranks_per_node, {}, {}, {}};
  const auto by_name = [](const NodePlace& a, const NodePlace& b) { return natural_less(a.node, b.node); };
  Nodes sorted = nodes;
  std::ranges::sort(sorted, by_name);
  Nodes chosen = choose(sorted, need);
  std::ranges::sort(chosen, by_name);
  std::ranges::set_difference(sorted, chosen, std::back_inserter(map.unused), by_name);
  std::vector<Nodes> groups;
  for (auto& [label, group] : grouped_by(&NodePlace::group, chosen)) {
    groups.push_back(std::move(group));
    std::ranges::sort(groups.back(), by_rack_and_name);
  }
  // Replicas that do not consist of whole nodes have no boundary that groups could be fitted to.
  const bool whole = mesh.shard % ranks_per_node == 0;
  map.nodes = order_groups(std::move(groups), whole ? static_cast<std::size_t>(mesh.shard / ranks_per_node) : need);
  add_notices(map);
  return map;
}

}  // namespace ananke
