#include "runtime/comm/placement.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace ananke {
namespace {

constexpr std::int64_t alignment = 16;  // elements; 64 bytes of f32: a cache line and every vector width

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t align_up(std::int64_t elements) { return divide_up(elements, alignment) * alignment; }

const Parameter& parameter_of(const ParameterTable& table, const Unit& unit, std::size_t index) {
  return table.parameters()[static_cast<std::size_t>(unit.parameters[index])];
}

// Elements from each expert's first parameter to the next one's, checked to be the same all through the stack:
// operators address the coordinate's expert e by e x stride.
std::int64_t find_stride(const ParameterTable& table, const Unit& unit, const UnitPlacement& place) {
  const auto expert_of = [&](std::size_t i) { return parameter_of(table, unit, place.first_parameter + i).expert; };
  const std::size_t placed = place.offset.size();
  std::size_t period = 1;  // parameters of one expert
  while (period < placed && expert_of(period) == expert_of(0)) ++period;
  const std::int64_t stride =
      period < placed ? place.offset[period] - place.offset[0] : align_up(place.segment(UnitSegment::wire).elements);
  for (std::size_t i = 0; i < placed; ++i) {
    const std::size_t expert = i / period;
    ANANKE_CHECK(expert_of(i) == place.experts.first + static_cast<int>(expert) &&
                     place.offset[i] == place.offset[i % period] + static_cast<std::int64_t>(expert) * stride,
                 "unit {}: parameter {} breaks the stack of experts of {} parameters and stride {}", unit.name, i,
                 period, stride);
  }
  return stride;
}

void cut(SegmentPlacement& segment, std::int64_t grain, int ranks) {
  segment.range = divide_up(divide_up(segment.elements, grain), ranks) * grain;
  segment.padded = segment.range * ranks;
}

// Parameters [first, end) of the unit, cut over `ranks`.
UnitPlacement place_parameters(const ParameterTable& table, const Unit& unit, std::size_t first, std::size_t end,
                               int ranks) {
  UnitPlacement place;
  place.ranks = ranks;
  place.first_parameter = first;
  for (std::size_t i = first; i < end; ++i) {
    const Parameter& parameter = parameter_of(table, unit, i);
    SegmentPlacement& segment = place.segments[index_of(segment_of(parameter.kind))];
    place.offset.push_back(align_up(segment.elements));
    segment.elements = place.offset.back() + parameter.shape.elements();
  }
  return place;
}

UnitPlacement place_dense(const ParameterTable& table, const Unit& unit, const MeshShape& mesh) {
  UnitPlacement place = place_parameters(table, unit, 0, unit.parameters.size(), mesh.shard);
  for (SegmentPlacement& segment : place.segments) cut(segment, alignment, mesh.shard);
  return place;
}

UnitPlacement place_experts(const ParameterTable& table, const Unit& unit, const MeshShape& mesh, int coordinate) {
  const int experts = parameter_of(table, unit, unit.parameters.size() - 1).expert + 1;
  const ExpertRange here = experts_of(coordinate, mesh.expert, experts);
  const auto begin_of = [&](int expert) {
    const auto it = std::partition_point(unit.parameters.begin(), unit.parameters.end(), [&](int parameter) {
      return table.parameters()[static_cast<std::size_t>(parameter)].expert < expert;
    });
    return static_cast<std::size_t>(it - unit.parameters.begin());
  };
  UnitPlacement place =
      place_parameters(table, unit, begin_of(here.first), begin_of(here.first + here.count), mesh.expert_shard());
  place.experts = here;
  if (here.count == 0) return place;
  place.expert_stride = find_stride(table, unit, place);
  const std::int64_t grain = here.count >= mesh.expert_shard() ? place.expert_stride : alignment;
  cut(place.segments[index_of(UnitSegment::wire)], grain, mesh.expert_shard());
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

// What a part holds before the padding at the ends.
std::string describe_owned(const UnitPlacement& place, int part) {
  const auto owned_of = [&](UnitSegment which) {
    const SegmentPlacement& segment = place.segment(which);
    return std::clamp<std::int64_t>(segment.elements - part * segment.range, 0, segment.range);
  };
  const std::int64_t wire = owned_of(UnitSegment::wire), fp32 = owned_of(UnitSegment::fp32);
  if (place.padded() == 0) return "nothing";
  if (wire + fp32 == 0) return "padding only";
  const bool whole = place.expert_stride != 0 && place.segment(UnitSegment::wire).range % place.expert_stride == 0;
  if (!whole) return fp32 == 0 ? group_digits(wire) : fmt::format("{} + {}", group_digits(wire), group_digits(fp32));
  const std::int64_t experts = divide_up(wire, place.expert_stride);
  return fmt::format("{} whole expert{}", experts, experts == 1 ? "" : "s");
}

// "0-2: 4,096; 3: 1,024": parts that hold alike stand together, so that the line stays short on any mesh.
std::string describe_parts(const UnitPlacement& place) {
  std::string line;
  for (int first = 0; first < place.ranks;) {
    const std::string owned = describe_owned(place, first);
    int last = first;
    while (last + 1 < place.ranks && describe_owned(place, last + 1) == owned) ++last;
    line += fmt::format("{}{}: {}", line.empty() ? "" : "; ",
                        first == last ? fmt::to_string(first) : fmt::format("{}-{}", first, last), owned);
    first = last + 1;
  }
  return line;
}

// "0, 2, 4, 6, ... (32 in all)"
std::string list_some(const std::vector<int>& numbers) {
  constexpr std::size_t most = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(numbers.size(), most); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", numbers[i]);
  }
  return numbers.size() > most ? fmt::format("{}, ... ({} in all)", text, numbers.size()) : text;
}

// Expert coordinates that are placed alike stand together.
std::string describe(const std::vector<UnitPlacement>& places) {
  if (places.size() == 1) return describe_parts(places[0]);
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t c = 0; c < places.size(); ++c) {
    const std::string text = describe_parts(places[c]);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& one) { return one.first == text; });
    if (group == groups.end()) group = groups.insert(group, {text, {}});
    group->second.push_back(static_cast<int>(c));
  }
  std::string line;
  for (const auto& [text, coordinates] : groups) {
    line += fmt::format("{}expert {}: [{}]", line.empty() ? "" : " | ", list_some(coordinates), text);
  }
  return line;
}

}  // namespace

UnitSegment segment_of(ParameterKind kind) noexcept {
  const bool small = kind == ParameterKind::norm || kind == ParameterKind::router;
  return small ? UnitSegment::fp32 : UnitSegment::wire;
}

ExpertRange experts_of(int coordinate, int axis, int experts) {
  ANANKE_CHECK(axis >= 1 && coordinate >= 0 && coordinate < axis && experts >= 0,
               "experts of coordinate {} of {}, {} experts", coordinate, axis, experts);
  // The first expert with floor(e x axis / experts) >= c is ceil(c x experts / axis).
  const auto first = [&](int c) { return static_cast<int>(divide_up(std::int64_t{c} * experts, axis)); };
  return {first(coordinate), first(coordinate + 1) - first(coordinate)};
}

Placement::Placement(const ParameterTable& table, const MeshShape& mesh) : table_(table), mesh_(mesh) {
  ANANKE_CHECK(mesh.shard >= 1 && mesh.replicate >= 1 && mesh.expert >= 1 && mesh.shard % mesh.expert == 0,
               "placement on mesh {}", to_string(mesh));
  for (const Unit& unit : table.units()) {
    std::vector<UnitPlacement>& places = units_.emplace_back();
    if (unit.kind != UnitKind::experts || unit.parameters.empty()) {
      places.push_back(place_dense(table, unit, mesh));
    } else {
      for (int c = 0; c < mesh.expert; ++c) places.push_back(place_experts(table, unit, mesh, c));
    }
  }
}

const std::vector<UnitPlacement>& Placement::places(int unit) const {
  return units_.at(static_cast<std::size_t>(unit));
}

const UnitPlacement& Placement::unit(int unit, const MeshCoordinates& at) const {
  const std::vector<UnitPlacement>& all = places(unit);
  return all.size() == 1 ? all[0] : all.at(static_cast<std::size_t>(at.expert));
}

const UnitPlacement& Placement::unit(int unit) const {
  ANANKE_CHECK(places(unit).size() == 1, "unit {} differs by the expert coordinate",
               table_.units()[static_cast<std::size_t>(unit)].name);
  return places(unit)[0];
}

std::int64_t Placement::largest_padded(int unit) const {
  std::int64_t largest = 0;
  for (const UnitPlacement& place : places(unit)) largest = std::max(largest, place.padded());
  return largest;
}

int Placement::part(int unit, const MeshCoordinates& at) const {
  const bool experts = table_.units()[static_cast<std::size_t>(unit)].kind == UnitKind::experts;
  return experts ? at.expert_shard : at.shard;
}

std::vector<Fragment> Placement::fragments(int rank) const {
  const MeshCoordinates at = coordinates(mesh_, rank);
  std::vector<Fragment> fragments;
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    const UnitPlacement& place = unit(u, at);
    for (std::size_t i = 0; i < place.offset.size(); ++i) {
      const std::size_t index = place.first_parameter + i;
      const int parameter = table_.units()[static_cast<std::size_t>(u)].parameters[index];
      const Parameter& what = table_.parameters()[static_cast<std::size_t>(parameter)];
      const UnitSegment segment = segment_of(what.kind);
      const std::int64_t begin = part(u, at) * place.segment(segment).range;
      const std::int64_t first = std::max(begin, place.offset[i]);
      const std::int64_t last = std::min(begin + place.segment(segment).range, place.offset[i] + what.shape.elements());
      if (first >= last) continue;
      fragments.push_back({.parameter = parameter,
                           .unit = u,
                           .begin = first - place.offset[i],
                           .count = last - first,
                           .offset_in_range = place.range_begin(segment) + first - begin});
    }
  }
  return fragments;
}

std::vector<FragmentRun> runs_of(std::span<const Fragment> fragments) {
  std::vector<FragmentRun> runs;
  for (const Fragment& one : fragments) {
    const bool goes_on =
        !runs.empty() && runs.back().unit == one.unit && runs.back().begin + runs.back().count == one.offset_in_range;
    if (!goes_on) runs.push_back({one.unit, one.offset_in_range, 0});
    runs.back().count += one.count;
  }
  return runs;
}

std::string Placement::hash() const {
  Hasher hasher;
  const auto add_number = [&](std::int64_t number) { hasher.update(&number, sizeof number); };
  const auto add_text = [&](const std::string& text) {
    add_number(static_cast<std::int64_t>(text.size()));
    hasher.update(text.data(), text.size());
  };
  for (const int size : {mesh_.replicate, mesh_.shard, mesh_.expert}) add_number(size);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Unit& unit = table_.units()[u];
    add_text(unit.name);
    for (const UnitPlacement& place : units_[u]) {
      add_number(place.ranks);
      add_number(place.expert_stride);
      for (const SegmentPlacement& segment : place.segments) {
        for (const std::int64_t number : {segment.elements, segment.range, segment.padded}) add_number(number);
      }
      for (std::size_t i = 0; i < place.offset.size(); ++i) {
        const Parameter& parameter = parameter_of(table_, unit, place.first_parameter + i);
        add_text(parameter.name);
        add_text(to_string(parameter.shape));
        add_number(place.offset[i]);
      }
    }
  }
  return hasher.hex();
}

std::string Placement::table() const {
  struct Line {
    std::int64_t elements = 0, padded = 0, range = 0;  // of all coordinates; the largest range
  };
  std::vector<Line> lines(units_.size());
  Line all;
  std::size_t width = 4;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    width = std::max(width, table_.units()[u].name.size());
    for (const UnitPlacement& place : units_[u]) {
      lines[u].elements += place.elements();
      lines[u].padded += place.padded();
      lines[u].range = std::max(lines[u].range, place.range());
    }
    all.elements += lines[u].elements;
    all.padded += lines[u].padded;
  }
  std::string text = fmt::format("placement on {}: {} units, {} elements, {} with padding, hash {}\n", to_string(mesh_),
                                 units_.size(), group_digits(all.elements), group_digits(all.padded), hash());
  text += fmt::format("{:<{}}  {:>15}  {:>15}  {:>12}  owned by shard (+ in the fp32 segment){}\n", "unit", width,
                      "elements", "range", "padding",
                      mesh_.expert > 1 ? "; experts by expert coordinate [by expert_shard]" : "");
  for (std::size_t u = 0; u < units_.size(); ++u) {
    text += fmt::format("{:<{}}  {:>15}  {:>15}  {:>12}  {}\n", table_.units()[u].name, width,
                        group_digits(lines[u].elements), group_digits(lines[u].range),
                        group_digits(lines[u].padded - lines[u].elements), describe(units_[u]));
  }
  return text;
}

}  // namespace ananke
