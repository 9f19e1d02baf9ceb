#include "plugins/fsdp/slots.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace ananke::fsdp {
namespace {

constexpr std::int64_t alignment = 64;  // elements; 256 bytes of f32, as the arena

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
    place = std::max(place, (end + alignment - 1) / alignment * alignment);
  }
  return place;
}

// The axis that a unit is cut over is as long on every rank.
std::int64_t home_size(const Placement& placement, int unit) {
  return is_cut(placement, unit, {}) ? placement.largest_padded(unit) : 0;
}

}  // namespace

bool is_cut(const Placement& placement, int unit, const MeshCoordinates& at) {
  return placement.unit(unit, at).ranks > 1;
}

Slots assign_slots(const ParameterTable& table, const Placement& placement, int distance) {
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
    const std::int64_t size = home_size(placement, static_cast<int>(unit));
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
