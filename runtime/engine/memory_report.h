// The memory plan of a rank as a record, and what it took beside it.
#pragma once

#include <optional>
#include <vector>

#include "ananke/memory.pb.h"
#include "runtime/roles/context.h"

namespace ananke {

class Rendezvous;
class Trainer;

// Everything that the rank plans: its arenas' memory and the backend's own.
std::vector<PlanLine> whole_plan(const Trainer& trainer);

// Lines of one purpose, place and lifetime added up, largest first; the sums leave out what is given back before the
// first step.
MemoryReport memory_report(int rank, int ranks, const std::vector<PlanLine>& lines);

// After some steps: the plan with the peaks of the arenas' ledgers, and what the backend itself says it has. A purpose
// that nobody planned has a line of its own.
MemoryReport measured_report(Trainer& trainer);

// On rank 0 the report of the rank that took most; nothing elsewhere. Collective.
std::optional<MemoryReport> largest_report(Rendezvous& rendezvous, const MemoryReport& mine);

}  // namespace ananke
