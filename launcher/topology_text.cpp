#include "launcher/topology_text.h"

#include <algorithm>
#include <map>

#include "runtime/base/error.h"
#include "runtime/base/text_table.h"
#include "runtime/topology/edges.h"

namespace ananke {
namespace {

struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const { return natural_less(a, b); }
};

std::string label_of(const std::string& label) { return label.empty() ? "?" : label; }

// One letter for a replica; after 62 they begin anew.
char letter_of(int replica) {
  constexpr std::string_view letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return letters[static_cast<std::size_t>(replica) % letters.size()];
}

std::string axes_text(const RankMap& map) {
  std::vector<std::vector<std::string>> rows{{"axis", "rings", "ranks each", "inside a node", "inside a group", "edges",
                                              "in node", "in rack", "in group", "between groups"}};
  for (const AxisEdges& axis : count_edges(map)) {
    std::vector<std::string>& row = rows.emplace_back(std::vector<std::string>{axis.axis});
    for (const long number : {static_cast<long>(axis.lines), static_cast<long>(axis.length),
                              static_cast<long>(axis.one_node), static_cast<long>(axis.one_group), axis.edges(),
                              axis.in_node, axis.in_rack, axis.in_group, axis.between_groups}) {
      row.push_back(std::to_string(number));
    }
  }
  return text_table(rows);
}

std::string replicas_text(const RankMap& map) {
  constexpr std::size_t most = 64;
  std::string text;
  const std::vector<ReplicaSpread> spreads = spread_of_replicas(map);
  for (std::size_t i = 0; i < std::min(spreads.size(), most); ++i) {
    std::string groups;
    for (const auto& [group, nodes] : spreads[i].groups) groups += fmt::format(" {}:{}", label_of(group), nodes);
    text += fmt::format("replica {} ({}): {} from one group to another; nodes of groups{}\n", i,
                        letter_of(static_cast<int>(i)), spreads[i].crossings, groups);
  }
  if (spreads.size() > most) text += fmt::format("... and {} replicas more\n", spreads.size() - most);
  return text;
}

// Racks of groups, and of each rack the letters of its nodes by their slots, where slots are known.
std::string racks_text(const RankMap& map) {
  struct Drawn {
    const NodePlace* place;
    char letter;
  };
  std::map<std::string, std::map<std::string, std::vector<Drawn>, NaturalLess>, NaturalLess> groups;
  for (std::size_t i = 0; i < map.nodes.size(); ++i) {
    const int replica = static_cast<int>(i) * map.ranks_per_node / map.mesh.shard;
    groups[map.nodes[i].group][map.nodes[i].rack].push_back({&map.nodes[i], letter_of(replica)});
  }
  for (const NodePlace& place : map.unused) groups[place.group][place.rack].push_back({&place, '.'});
  std::string text;
  for (auto& [group, racks] : groups) {
    for (auto& [rack, nodes] : racks) {
      std::ranges::sort(nodes,
                        [](const Drawn& a, const Drawn& b) { return natural_less(a.place->node, b.place->node); });
      std::string line;
      for (const Drawn& node : nodes) {
        if (node.place->slot > static_cast<int>(line.size()))
          line.resize(static_cast<std::size_t>(node.place->slot), ' ');
        if (node.place->slot > 0) {
          line[static_cast<std::size_t>(node.place->slot) - 1] = node.letter;
        } else {
          line += node.letter;
        }
      }
      text += fmt::format("  group {:>3}  rack {:>4}  {}\n", label_of(group), label_of(rack), line);
    }
  }
  return text;
}

}  // namespace

std::string rank_list(const RankMap& map) {
  std::string text;
  for (std::size_t i = 0; i < map.nodes.size(); ++i) {
    const int first = static_cast<int>(i) * map.ranks_per_node;
    text += fmt::format("{}-{} {} group {} rack {}\n", first, first + map.ranks_per_node - 1, map.nodes[i].node,
                        label_of(map.nodes[i].group), label_of(map.nodes[i].rack));
  }
  return text;
}

std::string topology_text(const RankMap& map, const std::string& where, const std::string& source) {
  std::string text =
      fmt::format("{}: {} ranks, {} on each of {} nodes; {}\nwhere nodes are: by {}; map {}\n", where, map.mesh.ranks(),
                  map.ranks_per_node, map.nodes.size(), to_string(map.mesh), source, map.hash());
  for (const std::string& notice : map.notices) text += "note: " + notice + "\n";
  text += axes_text(map) + replicas_text(map);
  if (!map.unused.empty()) {
    std::vector<std::string> names;
    for (const NodePlace& node : map.unused) names.push_back(node.node);
    text += fmt::format("left over: {} nodes: {}\n", names.size(), some_of(names, 8));
  }
  return text + racks_text(map);
}

}  // namespace ananke
