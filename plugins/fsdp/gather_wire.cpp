#include "plugins/fsdp/gather_wire.h"

#include <algorithm>

namespace ananke::fsdp {
namespace {

constexpr std::int64_t alignment = 16;  // bytes; parts begin where vectors of any type may

std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// Codes lie as the values do; scales follow the range's codes.
std::vector<Wire::BlockPiece> cut(const ParameterTable& table, const UnitPlacement& place, int unit, int index) {
  const std::int64_t range = place.segment(UnitSegment::wire).range;
  const std::int64_t begin = index * range, end = begin + range;
  std::vector<Wire::BlockPiece> pieces;
  std::int64_t scales = range;
  for (std::size_t i = 0; i < place.offset.size(); ++i) {
    const int number = table.units()[static_cast<std::size_t>(unit)].parameters[place.first_parameter + i];
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(number)];
    if (segment_of(parameter.kind) != UnitSegment::wire) continue;
    const std::int64_t first = std::max(begin, place.offset[i]);
    const std::int64_t last = std::min(end, place.offset[i] + parameter.shape.elements());
    if (first >= last) continue;
    pieces.push_back({.columns = parameter.shape[parameter.shape.rank() - 1],
                      .begin = first - place.offset[i],
                      .count = last - first,
                      .values = first - begin,
                      .codes = first - begin,
                      .scales = scales});
    scales += Wire::scales_of(pieces.back());
  }
  return pieces;
}

}  // namespace

GatherFormat gather_format(const plugin::Fsdp& config, UnitKind kind) {
  return kind == UnitKind::experts ? config.gather_experts() : config.gather_dense();
}

GatherWire gather_wire(const ParameterTable& table, const UnitPlacement& place, int unit, GatherFormat format) {
  const std::int64_t range = place.segment(UnitSegment::wire).range;
  GatherWire wire{.format = format, .fp32 = place.segment(UnitSegment::fp32).padded * 4};
  switch (format) {
    case plugin::Fsdp::FP32: wire.part = range * 4; break;
    case plugin::Fsdp::BF16: wire.part = range * 2; break;
    case plugin::Fsdp::FP8_E4M3:
      for (int index = 0; index < place.ranks; ++index) {
        const std::vector<Wire::BlockPiece> pieces = cut(table, place, unit, index);
        const std::int64_t end = pieces.empty() ? range : pieces.back().scales + Wire::scales_of(pieces.back());
        wire.part = std::max(wire.part, end);
      }
      wire.part = aligned(wire.part);
      break;
  }
  wire.parts = wire.part * place.ranks;
  return wire;
}

std::vector<Wire::BlockPiece> pieces_of(const ParameterTable& table, const UnitPlacement& place, int unit, int index,
                                        const GatherWire& wire, bool gathered) {
  std::vector<Wire::BlockPiece> pieces = cut(table, place, unit, index);
  if (!gathered) return pieces;
  for (Wire::BlockPiece& piece : pieces) {
    piece.values += index * place.segment(UnitSegment::wire).range;
    piece.codes += index * wire.part;
    piece.scales += index * wire.part;
  }
  return pieces;
}

}  // namespace ananke::fsdp
