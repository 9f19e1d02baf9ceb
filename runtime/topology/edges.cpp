#include "runtime/topology/edges.h"

#include <algorithm>
#include <functional>

#include "runtime/base/error.h"

namespace ananke {
namespace {

using Line = std::vector<int>;

// A line is listed by the rank that has coordinate 0 on its axis.
std::vector<Line> lines_of(const MeshShape& mesh, const std::string& axis) {
  std::vector<Line> lines;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const MeshCoordinates at = coordinates(mesh, rank);
    if (axis == "expert" && at.expert == 0) lines.push_back(expert_group(mesh, rank));
    if (axis == "expert_shard" && at.expert_shard == 0) lines.push_back(expert_shard_group(mesh, rank));
    if (axis == "shard" && at.shard == 0) lines.push_back(shard_group(mesh, rank));
    if (axis == "replicate" && at.replicate == 0) lines.push_back(replicate_group(mesh, rank));
  }
  return lines;
}

void for_each_edge(const Line& line, const std::function<void(int, int)>& take) {
  for (std::size_t i = 0; i + 1 < line.size(); ++i) take(line[i], line[i + 1]);
  if (line.size() > 2) take(line.back(), line.front());
}

bool same(const RankMap& map, int a, int b, std::string NodePlace::*label) {
  return map.place_of(a).*label == map.place_of(b).*label;
}

bool all_same(const RankMap& map, const Line& line, std::string NodePlace::*label) {
  return std::ranges::all_of(line, [&](int rank) { return same(map, rank, line.front(), label); });
}

}  // namespace

std::vector<AxisEdges> count_edges(const RankMap& map) {
  std::vector<std::string> axes{"shard", "replicate"};
  if (map.mesh.expert > 1) axes.insert(axes.begin(), {"expert", "expert_shard"});
  std::vector<AxisEdges> all;
  for (const std::string& axis : axes) {
    AxisEdges& counts = all.emplace_back(AxisEdges{.axis = axis});
    for (const Line& line : lines_of(map.mesh, axis)) {
      ++counts.lines;
      counts.length = static_cast<int>(line.size());
      counts.one_node += all_same(map, line, &NodePlace::node) ? 1 : 0;
      counts.one_group += all_same(map, line, &NodePlace::group) ? 1 : 0;
      for_each_edge(line, [&](int a, int b) {
        const bool in_group = same(map, a, b, &NodePlace::group);
        if (same(map, a, b, &NodePlace::node)) {
          ++counts.in_node;
        } else if (in_group && !map.place_of(a).rack.empty() && same(map, a, b, &NodePlace::rack)) {
          ++counts.in_rack;
        } else {
          ++(in_group ? counts.in_group : counts.between_groups);
        }
      });
    }
  }
  return all;
}

std::vector<std::pair<int, int>> edges_between_groups(const RankMap& map, const std::string& axis) {
  std::vector<std::pair<int, int>> edges;
  for (const Line& line : lines_of(map.mesh, axis)) {
    for_each_edge(line, [&](int a, int b) {
      if (!same(map, a, b, &NodePlace::group)) edges.emplace_back(a, b);
    });
  }
  return edges;
}

std::vector<ReplicaSpread> spread_of_replicas(const RankMap& map) {
  std::vector<ReplicaSpread> spreads;
  for (const Line& line : lines_of(map.mesh, "shard")) {
    ReplicaSpread& spread = spreads.emplace_back();
    const NodePlace* before = nullptr;
    for (const int rank : line) {
      const NodePlace& place = map.place_of(rank);
      if (&place == before) continue;
      before = &place;
      const auto found = std::ranges::find(spread.groups, place.group, &std::pair<std::string, int>::first);
      if (found == spread.groups.end()) {
        spread.groups.emplace_back(place.group, 1);
      } else {
        ++found->second;
      }
    }
    for_each_edge(line, [&](int a, int b) { spread.crossings += same(map, a, b, &NodePlace::group) ? 0 : 1; });
  }
  return spreads;
}

}  // namespace ananke
