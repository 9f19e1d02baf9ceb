#include "runtime/comm/placement.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace ananke {
namespace {

constexpr std::int64_t alignment = 16;  // elements; 64 bytes of f32: a cache line and every vector width

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t align_up(std::int64_t elements) { return divide_up(elements, alignment) * alignment; }

// Elements from each expert's first parameter to the next one's, checked to be the same all through the unit: operators
// address expert e by e x stride.
std::int64_t find_stride(const ParameterTable& table, const Unit& unit, const UnitPlacement& place) {
  const auto expert_of = [&](std::size_t i) {
    return table.parameters()[static_cast<std::size_t>(unit.parameters[i])].expert;
  };
  std::size_t period = 1;  // parameters of one expert
  while (period < unit.parameters.size() && expert_of(period) == expert_of(0)) ++period;
  const std::int64_t stride =
      period < unit.parameters.size() ? place.offset[period] - place.offset[0] : align_up(place.elements);
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const std::size_t expert = i / period;
    ANANKE_CHECK(expert_of(i) == static_cast<int>(expert) &&
                     place.offset[i] == place.offset[i % period] + static_cast<std::int64_t>(expert) * stride,
                 "unit {}: parameter {} breaks the stack of experts of {} parameters and stride {}", unit.name, i,
                 period, stride);
  }
  return stride;
}

UnitPlacement place_unit(const ParameterTable& table, const Unit& unit, int shard) {
  UnitPlacement place;
  for (const int parameter : unit.parameters) {
    place.offset.push_back(align_up(place.elements));
    place.elements = place.offset.back() + table.parameters()[static_cast<std::size_t>(parameter)].shape.elements();
  }
  std::int64_t cut = alignment;
  if (unit.kind == UnitKind::experts && !unit.parameters.empty()) {
    place.expert_stride = find_stride(table, unit, place);
    if (shard <= divide_up(place.elements, place.expert_stride)) cut = place.expert_stride;
  }
  place.range = divide_up(divide_up(place.elements, cut), shard) * cut;
  place.padded = place.range * shard;
  return place;
}

std::string group_digits(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

// What a shard's range holds before the padding at the unit's end.
std::string describe_owned(const UnitPlacement& place, int shard) {
  const std::int64_t owned = std::clamp<std::int64_t>(place.elements - shard * place.range, 0, place.range);
  if (owned == 0) return "padding only";
  if (place.expert_stride == 0 || place.range % place.expert_stride != 0) return group_digits(owned);
  const std::int64_t experts = divide_up(owned, place.expert_stride);
  return fmt::format("{} whole expert{}", experts, experts == 1 ? "" : "s");
}

// "0-2: 4,096; 3: 1,024": shards that own alike stand together, so that the line stays short on any mesh.
std::string describe_shards(const UnitPlacement& place, int shards) {
  std::string line;
  for (int first = 0; first < shards;) {
    const std::string owned = describe_owned(place, first);
    int last = first;
    while (last + 1 < shards && describe_owned(place, last + 1) == owned) ++last;
    line += fmt::format("{}{}: {}", line.empty() ? "" : "; ",
                        first == last ? fmt::to_string(first) : fmt::format("{}-{}", first, last), owned);
    first = last + 1;
  }
  return line;
}

}  // namespace

Placement::Placement(const ParameterTable& table, const MeshShape& mesh) : table_(table), mesh_(mesh) {
  ANANKE_CHECK(mesh.shard >= 1 && mesh.replicate >= 1, "placement on mesh {}", to_string(mesh));
  for (const Unit& unit : table.units()) units_.push_back(place_unit(table, unit, mesh.shard));
}

std::vector<Fragment> Placement::fragments(int shard) const {
  ANANKE_CHECK(shard >= 0 && shard < mesh_.shard, "fragments of shard {} in mesh {}", shard, to_string(mesh_));
  std::vector<Fragment> fragments;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const UnitPlacement& place = units_[u];
    const std::int64_t begin = shard * place.range;
    const std::int64_t end = begin + place.range;
    for (std::size_t i = 0; i < place.offset.size(); ++i) {
      const int parameter = table_.units()[u].parameters[i];
      const std::int64_t size = table_.parameters()[static_cast<std::size_t>(parameter)].shape.elements();
      const std::int64_t first = std::max(begin, place.offset[i]);
      const std::int64_t last = std::min(end, place.offset[i] + size);
      if (first >= last) continue;
      fragments.push_back({.parameter = parameter,
                           .unit = static_cast<int>(u),
                           .begin = first - place.offset[i],
                           .count = last - first,
                           .offset_in_range = first - begin});
    }
  }
  return fragments;
}

std::string Placement::hash() const {
  Hasher hasher;
  const auto add_number = [&](std::int64_t number) { hasher.update(&number, sizeof number); };
  const auto add_text = [&](const std::string& text) {
    add_number(static_cast<std::int64_t>(text.size()));
    hasher.update(text.data(), text.size());
  };
  add_number(mesh_.replicate);
  add_number(mesh_.shard);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const UnitPlacement& place = units_[u];
    add_text(table_.units()[u].name);
    for (const std::int64_t number : {place.elements, place.range, place.padded, place.expert_stride})
      add_number(number);
    for (std::size_t i = 0; i < place.offset.size(); ++i) {
      const Parameter& parameter = table_.parameters()[static_cast<std::size_t>(table_.units()[u].parameters[i])];
      add_text(parameter.name);
      add_text(to_string(parameter.shape));
      add_number(place.offset[i]);
    }
  }
  return hasher.hex();
}

std::string Placement::table() const {
  std::size_t width = 4;
  std::int64_t elements = 0, padded = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    width = std::max(width, table_.units()[u].name.size());
    elements += units_[u].elements;
    padded += units_[u].padded;
  }
  std::string text = fmt::format("placement on {}: {} units, {} elements, {} with padding\n", to_string(mesh_),
                                 units_.size(), group_digits(elements), group_digits(padded));
  text +=
      fmt::format("{:<{}}  {:>15}  {:>15}  {:>12}  owned, by shard\n", "unit", width, "elements", "range", "padding");
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const UnitPlacement& place = units_[u];
    text += fmt::format("{:<{}}  {:>15}  {:>15}  {:>12}  {}\n", table_.units()[u].name, width,
                        group_digits(place.elements), group_digits(place.range),
                        group_digits(place.padded - place.elements), describe_shards(place, mesh_.shard));
  }
  return text;
}

}  // namespace ananke
