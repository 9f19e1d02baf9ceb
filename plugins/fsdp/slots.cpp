#include "plugins/fsdp/slots.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace ananke::fsdp {
namespace {

constexpr std::int64_t alignment = 64;  // elements; 256 bytes of f32, as the arena

std::int64_t aligned(std::int64_t elements) { return (elements + alignment - 1) / alignment * alignment; }

using Blocks = std::vector<std::vector<int>>;  // of each unit; two for a tied embedding

Blocks blocks_of_units(const ParameterTable& table) {
  Blocks blocks(table.units().size());
  for (std::size_t b = 0; b < table.blocks().size(); ++b) {
    for (const int unit : table.blocks()[b].units)
      blocks[static_cast<std::size_t>(unit)].push_back(static_cast<int>(b));
  }
  return blocks;
}

bool within(const std::vector<int>& a, const std::vector<int>& b, int distance) {
  for (const int i : a) {
    for (const int j : b) {
      if (std::abs(i - j) <= distance) return true;
    }
  }
  return false;
}

using Span = std::pair<std::int64_t, std::int64_t>;  // [first, second)

// The lowest aligned place of `size` elements that none of `taken` touches.
std::int64_t first_fit(std::vector<Span> taken, std::int64_t size) {
  std::sort(taken.begin(), taken.end());
  std::int64_t place = 0;
  for (const auto& [begin, end] : taken) {
    if (place + size <= begin) break;
    place = std::max(place, aligned(end));
  }
  return place;
}

// Of a wire segment of `elements` in a narrower type, as f32.
std::int64_t wire_elements(std::int64_t elements, DType wire) {
  constexpr auto whole = static_cast<std::int64_t>(sizeof(float));
  return aligned((elements * static_cast<std::int64_t>(size_of(wire)) + whole - 1) / whole);
}

// The axis that a unit is cut over is as long on every rank, and so is the fp32 segment: experts have none.
std::int64_t home_size(const Placement& placement, int unit, DType wire, DType owned, bool on_host) {
  if (!has_home(placement, unit, {}, wire, owned, on_host)) return 0;
  const std::int64_t most = placement.largest_padded(unit);
  if (wire == DType::f32) return most;
  const std::int64_t fp32 = placement.unit(unit, {}).segment(UnitSegment::fp32).padded;
  return wire_elements(most - fp32, wire) + fp32;
}

}  // namespace

bool is_cut(const Placement& placement, int unit, const MeshCoordinates& at) {
  return placement.unit(unit, at).ranks > 1;
}

bool has_home(const Placement& placement, int unit, const MeshCoordinates& at, DType wire, DType owned, bool on_host) {
  return wire != owned || on_host || is_cut(placement, unit, at);
}

std::int64_t home_elements(const UnitPlacement& place, DType wire) {
  if (wire == DType::f32) return place.padded();
  return wire_elements(place.segment(UnitSegment::wire).padded, wire) + place.segment(UnitSegment::fp32).padded;
}

SegmentViews segments_in(const TensorView& home, const UnitPlacement& place, DType wire) {
  if (wire == DType::f32) return segments_of(home, place);
  const std::int64_t elements = place.segment(UnitSegment::wire).padded, begin = wire_elements(elements, wire);
  SegmentViews views;
  views.given = true;
  views.segments[index_of(UnitSegment::wire)] = {home.data, wire, Shape{elements}};
  views.segments[index_of(UnitSegment::fp32)] = home.slice(begin, place.segment(UnitSegment::fp32).padded);
  return views;
}

Slots assign_slots(const ParameterTable& table, const Placement& placement, int distance, DType wire, DType owned,
                   const std::vector<bool>& on_host) {
  const std::size_t units = table.units().size();
  const Blocks blocks = blocks_of_units(table);
  Slots slots;
  slots.overlaps.resize(units);
  std::vector<Span> homes;
  for (std::size_t unit = 0; unit < units; ++unit) {
    std::vector<Span> taken;
    for (std::size_t other = 0; other < unit; ++other) {
      if (within(blocks[unit], blocks[other], distance)) taken.push_back(homes[other]);
    }
    const bool there = !on_host.empty() && on_host[unit];
    const std::int64_t size = home_size(placement, static_cast<int>(unit), wire, owned, there);
    const std::int64_t place = first_fit(std::move(taken), size);
    slots.offset.push_back(place);
    slots.elements = std::max(slots.elements, place + size);
    for (std::size_t other = 0; other < unit; ++other) {
      if (homes[other].first >= place + size || place >= homes[other].second) continue;
      slots.overlaps[unit].push_back(static_cast<int>(other));
      slots.overlaps[other].push_back(static_cast<int>(unit));
    }
    homes.emplace_back(place, place + size);
  }
  return slots;
}

}  // namespace ananke::fsdp
