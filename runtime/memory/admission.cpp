#include "runtime/memory/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "runtime/base/units.h"

namespace ananke {
namespace {

using Ids = std::set<std::uint32_t>;

struct Node {
  std::string name;
  std::vector<const RankNeed*> ranks;
  const NodeMemory* memory = nullptr;
};

std::vector<Node> nodes_of(std::span<const RankNeed> needs) {
  std::vector<Node> nodes;
  std::map<std::string, std::size_t> index;
  for (const RankNeed& need : needs) {
    const auto [place, is_new] = index.try_emplace(need.node(), nodes.size());
    if (is_new) nodes.push_back({need.node(), {}, nullptr});
    Node& node = nodes[place->second];
    node.ranks.push_back(&need);
    if (need.has_memory()) node.memory = &need.memory();
  }
  return nodes;
}

// Where a rank's memory may lie, of what is known of its node.
Ids places_of(const RankNeed& need, const NodeRoom& room) {
  Ids ids, all;
  for (const NumaRoom& numa : room.numa) all.insert(numa.id);
  for (const std::uint32_t id : need.numa()) {
    if (all.contains(id)) ids.insert(id);
  }
  return ids.empty() ? all : ids;
}

bool includes(const Ids& all, const Ids& some) { return std::ranges::includes(all, some); }

// Ranks may be bound to one NUMA node each, or to several. They fit when no set of NUMA nodes has less than the ranks
// need that can go nowhere else (Hall's theorem for divisible needs); sets that are no unions of what ranks are bound
// to say nothing new.
std::set<Ids> sets_to_look_at(const std::vector<Ids>& places) {
  constexpr std::size_t most = 4096;
  std::set<Ids> sets(places.begin(), places.end());
  const std::set<Ids> single = sets;
  Ids all;
  for (const Ids& one : single) all.insert(one.begin(), one.end());
  for (const Ids& one : single) {
    std::set<Ids> more;
    for (const Ids& other : sets) {
      Ids both = other;
      both.insert(one.begin(), one.end());
      more.insert(std::move(both));
    }
    if (sets.size() + more.size() > most) break;
    sets.merge(more);
  }
  sets.insert(all);
  return sets;
}

class Judge {
 public:
  Judge(std::span<const RankNeed> needs, const RoomOptions& options) : needs_(needs), options_(options) {}

  AdmissionVerdict verdict() {
    for (const Node& node : nodes_of(needs_)) {
      judge_numa(node);
      judge_cgroups(node);
      judge_devices(node);
    }
    return std::move(verdict_);
  }

 private:
  void judge_numa(const Node& node) {
    if (!node.memory) {
      verdict_.unknown.push_back(fmt::format("node {}: none of its ranks says what memory it has", node.name));
      return;
    }
    const NodeRoom room = room_of(*node.memory, options_);
    const bool missing = std::ranges::any_of(node.memory->numa(), [](const NumaMemory& numa) {
      return numa.online() && !numa.read() && !(numa.has_cpus() && numa.cpus().empty());
    });
    if (room.numa.empty() || missing) {
      verdict_.unknown.push_back(
          fmt::format("node {}: {}", node.name,
                      node.memory->trouble().empty() ? "it shows no memory of its own" : node.memory->trouble(0)));
      if (room.numa.empty()) return;
    }
    warn_of_node_bytes(node, room);
    if (room.cache_on_devices > std::uint64_t{1} << 30) {
      verdict_.warnings.push_back(fmt::format(
          "node {}: {} of the devices' memory is page cache; drivers before R570 do not drop it when a GPU asks for "
          "memory: have the site drop caches, or its driver updated",
          node.name, format_bytes(room.cache_on_devices)));
    }
    compare(node, room);
  }

  // What a machine grows to is no less than what it has.
  void warn_of_node_bytes(const Node& node, const NodeRoom& room) {
    std::uint64_t all = 0;
    for (const NumaRoom& numa : room.numa) all += numa.total;
    if (options_.node_bytes == 0 || options_.node_bytes >= all) return;
    verdict_.warnings.push_back(fmt::format(
        "node {}: the site's memory.node_bytes, {}, is less than the {} that the node has already, and does not count: "
        "it is for machines whose memory grows with use; to keep some free, set memory.reserve",
        node.name, format_bytes(options_.node_bytes), format_bytes(all)));
  }

  void compare(const Node& node, const NodeRoom& room) {
    std::vector<Ids> places;
    for (const RankNeed* need : node.ranks) places.push_back(places_of(*need, room));
    std::vector<Shortage> found;
    for (const Ids& set : sets_to_look_at(places)) {
      Shortage here{.node = node.name, .numa = {set.begin(), set.end()}};
      for (std::size_t i = 0; i < places.size(); ++i) {
        if (!includes(set, places[i])) continue;
        here.need += node.ranks[i]->host_bytes();
        here.ranks.push_back(node.ranks[i]->rank());
      }
      for (const std::uint32_t id : set) here.have += room.find(id)->available;
      if (here.need > here.have) found.push_back(std::move(here));
    }
    std::ranges::stable_sort(found, {}, [](const Shortage& s) { return s.numa.size(); });
    for (Shortage& one : found) {
      const Ids mine(one.numa.begin(), one.numa.end());
      const bool told = std::ranges::any_of(verdict_.shortages, [&](const Shortage& other) {
        return other.node == node.name && !other.numa.empty() &&
               includes(mine, Ids(other.numa.begin(), other.numa.end()));
      });
      if (!told) verdict_.shortages.push_back(std::move(one));
    }
  }

  // Ranks in one group, or in groups below it, share its limit.
  void judge_cgroups(const Node& node) {
    std::map<std::pair<std::string, std::string>, Shortage> groups;
    for (const RankNeed* need : node.ranks) {
      for (const CgroupLimit& limit : need->cgroup()) {
        Shortage& group = groups[{limit.path(), limit.file()}];
        const std::uint64_t gone = limit.used() - std::min(limit.used(), limit.reclaimable());
        const std::uint64_t have = limit.limit() - std::min(limit.limit(), gone);
        if (!group.cgroup || have < group.have) {
          group.cgroup = &limit;
          group.have = have;
        }
        group.node = node.name;
        group.need += need->host_bytes();
        group.ranks.push_back(need->rank());
      }
    }
    for (auto& [key, group] : groups) {
      if (group.need > group.have) verdict_.shortages.push_back(std::move(group));
    }
  }

  void judge_devices(const Node& node) {
    for (const RankNeed* need : node.ranks) {
      if (!need->has_device_free() || need->device_bytes() <= need->device_free()) continue;
      verdict_.shortages.push_back({.node = node.name,
                                    .device = need->device(),
                                    .ranks = {need->rank()},
                                    .need = need->device_bytes(),
                                    .have = need->device_free()});
    }
  }

  const std::span<const RankNeed> needs_;
  const RoomOptions options_;
  AdmissionVerdict verdict_;
};

}  // namespace

bool AdmissionVerdict::host_fits() const {
  return unknown.empty() && std::ranges::all_of(shortages, [](const Shortage& s) { return !s.device.empty(); });
}

AdmissionVerdict judge_admission(std::span<const RankNeed> needs, const RoomOptions& options) {
  return Judge(needs, options).verdict();
}

std::optional<double> largest_fraction(double configured, int layers, const std::function<bool(double)>& fits) {
  if (fits(configured)) return configured;
  if (!fits(0)) return std::nullopt;
  int good = 0, bad = static_cast<int>(std::ceil(configured * layers - 1e-9));
  while (bad - good > 1) {
    const int middle = good + (bad - good) / 2;
    (fits(static_cast<double>(middle) / layers) ? good : bad) = middle;
  }
  return static_cast<double>(good) / layers;
}

}  // namespace ananke
