#include "runtime/topology/host_names.h"

#include <algorithm>
#include <charconv>

#include "ananke/machine.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"

namespace ananke {
namespace {

[[noreturn]] void refuse(const std::string& pattern, const std::string& why) {
  fail(ErrorKind::config,
       "topology.host_names.pattern is '{}': {}; expected text and numbers such as 'node-{{rack:3}}-{{slot:2}}'",
       pattern, why);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

HostNamePattern::HostNamePattern(const HostNames& names)
    : pattern_(names.pattern()),
      racks_per_group_(names.racks_per_group()),
      nodes_per_rack_(names.nodes_per_rack()),
      racks_(names.racks()),
      nodes_(names.nodes()),
      first_rack_(names.first_rack()),
      first_slot_(names.first_slot()),
      first_node_(names.first_node()) {
  read_pattern();
}

HostNamePattern::What HostNamePattern::what_named(const std::string& pattern, std::string_view name) {
  if (name == "group") return What::group;
  if (name == "rack") return What::rack;
  if (name == "slot") return What::slot;
  if (name == "node") return What::node;
  refuse(pattern, fmt::format("there is no '{{{}}}'{}", name, suggestion(name, {"group", "rack", "slot", "node"})));
}

HostNamePattern::Number HostNamePattern::read_number(std::string_view inside) {
  const std::size_t colon = inside.find(':');
  const Number number{what_named(pattern_, inside.substr(0, colon)), 0};
  if (colon == std::string_view::npos) return number;
  const std::string_view digits = inside.substr(colon + 1);
  if (digits.size() != 1 || digits[0] < '1')
    refuse(pattern_, fmt::format("'{}' is no number of digits (1 to 9)", digits));
  return {number.what, digits[0] - '0'};
}

bool HostNamePattern::has(What what) const {
  return std::ranges::any_of(pieces_, [&](const Piece& piece) {
    const Number* number = std::get_if<Number>(&piece);
    return number != nullptr && number->what == what;
  });
}

void HostNamePattern::read_pattern() {
  for (std::size_t at = 0; at < pattern_.size();) {
    const std::size_t open = std::min(pattern_.find_first_of("{}", at), pattern_.size());
    if (open > at) pieces_.emplace_back(pattern_.substr(at, open - at));
    at = open;
    if (at == pattern_.size()) break;
    const std::size_t close = pattern_.find('}', open);
    if (pattern_[open] == '}') refuse(pattern_, "'}' without '{'");
    if (close == std::string::npos) refuse(pattern_, "'{' without '}'");
    const Number number = read_number(std::string_view(pattern_).substr(open + 1, close - open - 1));
    if (has(number.what)) refuse(pattern_, "a number is there twice");
    const Number* before = pieces_.empty() ? nullptr : std::get_if<Number>(&pieces_.back());
    if (before != nullptr && before->digits == 0) refuse(pattern_, "the end of a number is not told from the next one");
    pieces_.emplace_back(number);
    at = close + 1;
  }
  if (!has(What::slot) && !has(What::node)) refuse(pattern_, "it has neither {slot} nor {node}");
}

std::optional<long>& HostNamePattern::number_of(Numbers& numbers, What what) {
  switch (what) {
    case What::group: return numbers.group;
    case What::rack: return numbers.rack;
    case What::slot: return numbers.slot;
    case What::node: break;
  }
  return numbers.node;
}

std::optional<HostNamePattern::Numbers> HostNamePattern::numbers_of(std::string_view node) const {
  Numbers numbers;
  for (const Piece& piece : pieces_) {
    if (const std::string* text = std::get_if<std::string>(&piece)) {
      if (!node.starts_with(*text)) return std::nullopt;
      node.remove_prefix(text->size());
      continue;
    }
    const auto& [what, digits] = std::get<Number>(piece);
    std::size_t length = 0;
    while (length < node.size() && is_digit(node[length]) &&
           length < (digits > 0 ? static_cast<std::size_t>(digits) : 9)) {
      ++length;
    }
    const bool right =
        digits > 0 ? length == static_cast<std::size_t>(digits) : length > 0 && (node[0] != '0' || length == 1);
    if (!right) return std::nullopt;
    long value = 0;
    std::from_chars(node.data(), node.data() + length, value);
    number_of(numbers, what) = value;
    node.remove_prefix(length);
  }
  return node.empty() ? std::optional(numbers) : std::nullopt;
}

// Fills in what follows from the others; false: the machine has no such node.
bool HostNamePattern::complete(Numbers& n) const {
  if (n.node && (*n.node < first_node_ || (nodes_ > 0 && *n.node >= first_node_ + nodes_))) return false;
  if (n.node && !n.rack && nodes_per_rack_ > 0) {
    n.rack = first_rack_ + (*n.node - first_node_) / nodes_per_rack_;
    if (!n.slot) n.slot = first_slot_ + (*n.node - first_node_) % nodes_per_rack_;
  }
  if (n.rack && (*n.rack < first_rack_ || (racks_ > 0 && *n.rack >= first_rack_ + racks_))) return false;
  if (n.slot && (*n.slot < first_slot_ || (nodes_per_rack_ > 0 && *n.slot >= first_slot_ + nodes_per_rack_)))
    return false;
  if (n.rack && !n.group && racks_per_group_ > 0) n.group = 1 + (*n.rack - first_rack_) / racks_per_group_;
  return true;
}

std::optional<NodePlace> HostNamePattern::place_of(std::string_view node) const {
  std::optional<Numbers> numbers = numbers_of(node);
  if (!numbers || !complete(*numbers)) return std::nullopt;
  NodePlace place{std::string(node), "", "", -1};
  if (numbers->group) place.group = std::to_string(*numbers->group);
  if (numbers->rack) place.rack = std::to_string(*numbers->rack);
  if (numbers->slot) place.slot = static_cast<int>(*numbers->slot);
  return place;
}

std::string HostNamePattern::name_of(const Numbers& numbers) const {
  Numbers copy = numbers;
  std::string name;
  for (const Piece& piece : pieces_) {
    if (const std::string* text = std::get_if<std::string>(&piece)) {
      name += *text;
    } else {
      const auto& [what, digits] = std::get<Number>(piece);
      name += fmt::format("{:0{}}", number_of(copy, what).value_or(0), digits);
    }
  }
  return name;
}

std::vector<std::string> HostNamePattern::all() const {
  std::vector<std::string> names;
  if (has(What::node) && nodes_ > 0) {
    for (long node = 0; node < nodes_; ++node) {
      Numbers numbers;
      numbers.node = first_node_ + node;
      complete(numbers);
      names.push_back(name_of(numbers));
    }
    return names;
  }
  const bool countable =
      has(What::rack) && racks_ > 0 && nodes_per_rack_ > 0 && (!has(What::group) || racks_per_group_ > 0);
  if (!countable) {
    fail(ErrorKind::config,
         "the site does not say how many nodes are called '{}': it needs topology.host_names.nodes, or racks and "
         "nodes_per_rack (and racks_per_group for {{group}}); name the nodes with --hosts instead",
         pattern_);
  }
  for (long rack = 0; rack < racks_; ++rack) {
    for (long slot = 0; slot < nodes_per_rack_; ++slot) {
      Numbers numbers;
      numbers.rack = first_rack_ + rack;
      numbers.slot = first_slot_ + slot;
      complete(numbers);
      names.push_back(name_of(numbers));
    }
  }
  return names;
}

std::vector<HostNamePattern> patterns_of(const SiteTopology& topology) {
  return {topology.host_names().begin(), topology.host_names().end()};
}

}  // namespace ananke
