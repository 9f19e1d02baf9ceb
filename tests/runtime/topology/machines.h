// Nodes for tests of topology: names as of a machine of 25 groups of 5 racks of 48, and a source of chance that is the
// same everywhere.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ananke/site.pb.h"

namespace ananke {

inline Site racked_site() {
  Site site;
  site.set_name("racked");
  HostNames& names = *site.mutable_topology()->add_host_names();
  names.set_pattern("n-{rack:3}-{slot:2}");
  names.set_racks(125);
  names.set_racks_per_group(5);
  names.set_nodes_per_rack(48);
  return site;
}

inline std::string racked_node(int rack, int slot) { return fmt::format("n-{:03}-{:02}", rack, slot); }

class Chance {
 public:
  explicit Chance(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  // From 0 to count - 1.
  int below(int count) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<int>(state_ % static_cast<std::uint64_t>(count));
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i)
      std::swap(items[i - 1], items[static_cast<std::size_t>(below(static_cast<int>(i)))]);
  }

 private:
  std::uint64_t state_;
};

// `count` different nodes of the machine, in any order.
inline std::vector<std::string> drawn_nodes(Chance& chance, int count) {
  std::vector<std::string> all;
  for (int rack = 1; rack <= 125; ++rack) {
    for (int slot = 1; slot <= 48; ++slot) all.push_back(racked_node(rack, slot));
  }
  chance.shuffle(all);
  all.resize(static_cast<std::size_t>(count));
  return all;
}

}  // namespace ananke
