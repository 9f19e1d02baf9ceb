// Where units lie while they are whole on a rank, f32 or with the wire segment in a narrower type. Every unit has one
// fixed home in a region that many share: units of blocks at most `distance` apart never overlap, others may. Steps run
// along the line of blocks, forwards and back, so homes repeat like a ring, without fragments and without an allocator
// in the step.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/placement.h"
#include "runtime/roles/parameters.h"

namespace ananke::fsdp {

struct Slots {
  std::int64_t elements = 0;               // of the region, as f32
  std::vector<std::int64_t> offset;        // of each unit's home, a multiple of 64 elements
  std::vector<std::vector<int>> overlaps;  // the other units whose homes share memory with it
};

bool is_cut(const Placement& placement, int unit, const MeshCoordinates& at);

// A unit that is not cut is used where it is owned, if it is used as it is owned and owned on the device: its home is
// empty.
bool has_home(const Placement& placement, int unit, const MeshCoordinates& at, DType wire, DType owned,
              bool on_host = false);
// As f32 elements.
std::int64_t home_elements(const UnitPlacement& place, DType wire);
// The segments in a home of so many elements.
SegmentViews segments_in(const TensorView& home, const UnitPlacement& place, DType wire);

// `wire`: what wire segments are there; `owned`: at their owners; `on_host`: which units are owned there, none where it
// is empty. A pure function: every rank has the same, whatever experts it holds, since homes decide the order of
// collectives.
Slots assign_slots(const ParameterTable& table, const Placement& placement, int distance, DType wire = DType::f32,
                   DType owned = DType::f32, const std::vector<bool>& on_host = {});

}  // namespace ananke::fsdp
