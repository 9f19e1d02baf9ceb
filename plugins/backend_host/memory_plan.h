// Memory of this backend besides the pieces that others take from its arena.
#pragma once

#include <span>
#include <vector>

#include "runtime/comm/collective_use.h"
#include "runtime/roles/context.h"

namespace ananke::host {

// How a group of ranks exchanges data, as far as it can be told before they meet.
enum class Way { threads, shared_memory, gloo };

struct PlannedAxis {
  int ranks = 1;
  Way way = Way::threads;
};

// What collectives keep, from the largest call of each kind on one axis (collectives.cpp, shared_transport.cpp,
// gloo_transport.cpp): scratch and landing buffers from the arena, outboxes in shared memory.
std::vector<PlanLine> collective_memory(std::span<const CollectiveUse> uses, const PlannedAxis& axis);

// What a process of this backend takes by itself: measured, see memory_plan.cpp.
PlanLine process_memory(int threads, bool gloo);

}  // namespace ananke::host
