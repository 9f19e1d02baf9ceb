// A unit as bytes while it is gathered: every rank of the axis sends one part of equal length, the parts arrive one
// behind the other.
//   FP32      the range's f32 values
//   BF16      the range's bf16 values
//   FP8_E4M3  the range's codes, then the scales of its 128 x 128 blocks (operators/wire.h), then room up to the
//             longest part's scales. Ranges may cut a matrix anywhere: every owner scales what it owns.
// The fp32 segment always travels as f32, apart.
#pragma once

#include <vector>

#include "plugins/fsdp/fsdp.pb.h"
#include "runtime/comm/placement.h"
#include "runtime/operators/wire.h"
#include "runtime/roles/parameters.h"

namespace ananke::fsdp {

using GatherFormat = plugin::Fsdp::Gather;

GatherFormat gather_format(const plugin::Fsdp& config, UnitKind kind);

struct GatherWire {
  GatherFormat format = plugin::Fsdp::FP32;
  std::int64_t part = 0;   // bytes of one rank's part of the wire segment
  std::int64_t parts = 0;  // bytes of all
  std::int64_t fp32 = 0;   // bytes of the gathered fp32 segment
  std::int64_t whole() const { return parts + fp32; }
};

// Pure: the same on every rank of the axis.
GatherWire gather_wire(const ParameterTable& table, const UnitPlacement& place, int unit, GatherFormat format);

// FP8_E4M3: the pieces of matrices in part `index` of the axis. Values are counted from the range's begin, or with
// `gathered` from the begin of the gathered segment; bytes from the part's begin, or from that of all parts.
std::vector<Wire::BlockPiece> pieces_of(const ParameterTable& table, const UnitPlacement& place, int unit, int index,
                                        const GatherWire& wire, bool gathered);

}  // namespace ananke::fsdp
