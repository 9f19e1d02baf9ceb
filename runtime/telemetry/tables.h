// Tables for people, printed at start and on request. Pure functions of what they show.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/device/arena.h"
#include "runtime/roles/context.h"

namespace ananke {

class MemoryReport;
class ParameterTable;

// One line per kind of parameter (layers and experts folded into '*'), then totals, active parameters and FLOPs per
// token of a row of `context` tokens, forward and backward.
std::string parameter_table_text(const ParameterTable& table, std::int64_t context);

// The memory plan of one rank: lines of one purpose and place added up, largest first, with the sum per place. What is
// given back before the first step is not in the sums.
std::string memory_plan_text(std::span<const PlanLine> lines);
// The same of a report, in its order, beside what was measured where it has that.
std::string memory_report_text(const MemoryReport& report);
const char* lifetime_name(Lifetime lifetime);  // "run", "use", "start"

// What an arena holds, with its sum and peak. `name` is the memory's ("host memory").
std::string ledger_text(const std::string& name, std::span<const Arena::Line> lines, std::uint64_t peak);

}  // namespace ananke
