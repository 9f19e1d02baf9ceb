// What a rank owns, weights or gradients: of each unit its range of the wire segment in the type that is stored
// (training.weights), behind it that of the fp32 segment, f32; units one behind the other.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/placement.h"
#include "runtime/device/arena.h"
#include "runtime/roles/parameters.h"

namespace ananke::fsdp {

struct OwnedRanges {
  std::vector<std::int64_t> begin;  // of each unit, in bytes, in the memory of the place where it is
  std::int64_t bytes = 0;           // of all on the device
  std::int64_t host_bytes = 0;      // of all on the host
};
// Pure. `stored`: of wire segments. `on_host`: by unit.
OwnedRanges owned_ranges(const ParameterTable& table, const Placement& placement, const MeshCoordinates& at,
                         DType stored, const std::vector<bool>& on_host);

// A unit's ranges, from byte `begin` of the memory on.
SegmentViews owned_in(const Buffer& memory, std::int64_t begin, const UnitPlacement& place, DType stored);

// Of a range in one array of f32.
SegmentViews ranges_of(const TensorView& range, const UnitPlacement& place);

// The part of one parameter.
TensorView fragment_in(const SegmentViews& owned, const Fragment& fragment);

// Both ranges as one array: of f32, where that is what is stored; as bytes.
TensorView as_one(const SegmentViews& owned);
TensorView bytes_of(const SegmentViews& owned);

}  // namespace ananke::fsdp
