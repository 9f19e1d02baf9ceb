// Where units lie while they are whole on a rank. Every unit has one fixed home in a region that many share: units of
// blocks at most `distance` apart never overlap, others may. Steps run along the line of blocks, forwards and back, so
// homes repeat like a ring, without fragments and without an allocator in the step.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/placement.h"

namespace ananke::fsdp {

struct Slots {
  std::int64_t elements = 0;               // of the region
  std::vector<std::int64_t> offset;        // of each unit's home, a multiple of 64 elements; largest_padded long
  std::vector<std::vector<int>> overlaps;  // the other units whose homes share memory with it
};

// A unit that is not cut is computed with where it is owned: its home is empty.
bool is_cut(const Placement& placement, int unit, const MeshCoordinates& at);

// A pure function: every rank has the same, whatever experts it holds, since homes decide the order of collectives.
Slots assign_slots(const ParameterTable& table, const Placement& placement, int distance);

}  // namespace ananke::fsdp
