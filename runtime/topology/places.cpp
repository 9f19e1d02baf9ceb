#include "runtime/topology/places.h"

#include <algorithm>
#include <optional>

#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/topology/host_names.h"

namespace ananke {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::vector<std::string> cut(std::string_view text) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t dot = text.find('.');
    parts.emplace_back(text.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    text.remove_prefix(dot + 1);
  }
}

// The switches that an address names, outermost first; nothing where it does not fit its pattern. A node's own name may
// have dots too.
std::vector<std::string> switches_of(const SlurmAddress& slurm) {
  const std::vector<std::string> kinds = cut(slurm.pattern);
  std::vector<std::string> parts = cut(slurm.address);
  if (kinds.empty() || kinds.back() != "node" || parts.size() < kinds.size()) return {};
  parts.resize(kinds.size() - 1);
  return parts;
}

// Groups and racks by Slurm's switches. False: not every node has one.
bool place_by_switches(std::vector<NodePlace>& nodes, const std::map<std::string, SlurmAddress>& slurm) {
  std::vector<std::vector<std::string>> all;
  for (const NodePlace& node : nodes) {
    const auto found = slurm.find(node.node);
    all.push_back(found == slurm.end() ? std::vector<std::string>() : switches_of(found->second));
    if (all.back().empty()) return false;
  }
  std::size_t levels = all.front().size();
  for (const auto& switches : all) levels = std::min(levels, switches.size());
  std::size_t level = 0;
  while (level + 1 < levels &&
         std::ranges::all_of(all, [&](const auto& s) { return s[level] == all.front()[level]; })) {
    ++level;
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].group = all[i][level];
    nodes[i].rack = all[i].back();
  }
  return true;
}

// Their names; of those that no pattern fits nothing is known.
std::vector<std::string> place_by_names(std::vector<NodePlace>& nodes, const std::vector<HostNamePattern>& patterns) {
  std::vector<std::string> unknown;
  for (NodePlace& node : nodes) {
    std::optional<NodePlace> place;
    for (const HostNamePattern& pattern : patterns) {
      if (!place) place = pattern.place_of(node.node);
    }
    if (place) {
      node = *std::move(place);
    } else {
      unknown.push_back(node.node);
    }
  }
  return unknown;
}

std::string text_of(const std::vector<HostNamePattern>& patterns) {
  std::vector<std::string> texts;
  for (const HostNamePattern& pattern : patterns) texts.push_back(pattern.pattern());
  return some_of(texts, texts.size());
}

bool some_without_group(const std::vector<NodePlace>& nodes) {
  return std::ranges::any_of(nodes, [](const NodePlace& node) { return node.group.empty(); });
}

}  // namespace

std::string some_of(const std::vector<std::string>& names, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > most ? text + fmt::format(" and {} more", names.size() - most) : text;
}

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const auto digits = [](std::string_view& text) {
        while (text.size() > 1 && text[0] == '0' && is_digit(text[1])) text.remove_prefix(1);
        const std::size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
        const std::string_view number = text.substr(0, end);
        text.remove_prefix(end);
        return number;
      };
      const std::string_view left = digits(a), right = digits(b);
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
      continue;
    }
    if (a[0] != b[0]) return a[0] < b[0];
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // "node1" and "node01"
}

Places find_places(std::vector<std::string> names, const Site& site, const std::map<std::string, SlurmAddress>& slurm) {
  std::ranges::sort(names, natural_less);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) {
    fail(ErrorKind::config, "node {} is named twice; every node of a job has a name of its own", *twice);
  }
  Places places;
  for (std::string& name : names) places.nodes.push_back({std::move(name), "", "", -1});
  const std::vector<HostNamePattern> patterns = patterns_of(site.topology());
  const std::vector<std::string> unknown = place_by_names(places.nodes, patterns);
  if (!patterns.empty() && !some_without_group(places.nodes)) {
    places.source = fmt::format("names ({})", text_of(patterns));
    return places;
  }
  if (place_by_switches(places.nodes, slurm)) {
    places.source = "Slurm's switches";
    return places;
  }
  places.source = "names alone";
  std::string why = fmt::format("site '{}' does not say how its nodes are called (topology.host_names)", site.name());
  if (!unknown.empty() && !patterns.empty()) {
    why = fmt::format("{} of {} nodes ({}) are not called as site '{}' knows them ({})", unknown.size(),
                      places.nodes.size(), some_of(unknown), site.name(), text_of(patterns));
  } else if (!patterns.empty()) {
    why = fmt::format("the names of site '{}' ({}) tell no group", site.name(), text_of(patterns));
  }
  const bool none = std::ranges::all_of(places.nodes, [](const NodePlace& node) { return node.group.empty(); });
  places.notices.push_back(why + ", and Slurm tells no switches of them: " +
                           (none ? "nodes are taken in the order of their names"
                                 : "these are taken for a group of their own, in the order of their names"));
  return places;
}

}  // namespace ananke
