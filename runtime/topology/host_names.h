// A site's rule of how its nodes are called (HostNames in proto/ananke/machine.proto), read both ways.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/topology/places.h"

namespace ananke {

class HostNames;
class SiteTopology;

class HostNamePattern {
 public:
  // Throws Error(config) quoting the pattern and what is wrong with it.
  explicit HostNamePattern(const HostNames& names);

  // Where a node of this name is; nothing where the name does not fit, or its numbers are none of this machine's.
  std::optional<NodePlace> place_of(std::string_view node) const;
  // Every name of the machine, in order. Throws Error(config) where the site does not say how many there are.
  std::vector<std::string> all() const;
  const std::string& pattern() const { return pattern_; }

 private:
  enum class What { group, rack, slot, node };
  struct Number {
    What what;
    int digits;  // 0: any
  };
  using Piece = std::variant<std::string, Number>;
  struct Numbers {
    std::optional<long> group, rack, slot, node;
  };

  static What what_named(const std::string& pattern, std::string_view name);
  void read_pattern();
  Number read_number(std::string_view inside);
  bool has(What what) const;
  std::optional<Numbers> numbers_of(std::string_view node) const;
  bool complete(Numbers& numbers) const;
  std::string name_of(const Numbers& numbers) const;
  static std::optional<long>& number_of(Numbers& numbers, What what);

  std::string pattern_;
  std::vector<Piece> pieces_;
  long racks_per_group_, nodes_per_rack_, racks_, nodes_, first_rack_, first_slot_, first_node_;
};

// Those of a site, best first. Throws Error(config).
std::vector<HostNamePattern> patterns_of(const SiteTopology& topology);

}  // namespace ananke
