#include "plugins/backend_host/memory_plan.h"

#include <algorithm>

#include "plugins/backend_host/collectives.h"

namespace ananke::host {
namespace {

constexpr std::uint64_t piece_alignment = 256, outbox_step = std::uint64_t{256} << 10;

std::uint64_t rounded(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Needs {
  std::uint64_t scratch = 0;  // where results are made before they may overwrite what others still read
  std::uint64_t landing = 0;  // what arrives before it is reduced
  std::uint64_t outbox = 0;   // what is shown to others at once
};

Needs needs_of(const CollectiveUse& use, std::uint64_t ranks) {
  const std::uint64_t others = use.bytes / ranks * (ranks - 1), block = rounded((use.bytes + ranks - 1) / ranks, 8);
  switch (use.kind) {
    case CollectiveKind::all_gather: return {.outbox = use.bytes};
    case CollectiveKind::reduce_scatter: return {.landing = others, .outbox = others};
    case CollectiveKind::broadcast: return {.outbox = use.bytes};
    case CollectiveKind::all_to_all: return {.outbox = others};
    case CollectiveKind::all_reduce: break;
  }
  if (Collectives::reduces_at_once(use.bytes, static_cast<int>(ranks))) {
    return {.scratch = use.bytes, .landing = use.bytes * (ranks - 1), .outbox = use.bytes};
  }
  return {.scratch = block, .landing = block * (ranks - 1), .outbox = others};
}

}  // namespace

std::vector<PlanLine> collective_memory(std::span<const CollectiveUse> uses, const PlannedAxis& axis) {
  if (axis.ranks < 2) return {};
  Needs most;
  for (const CollectiveUse& use : uses) {
    const Needs one = needs_of(use, static_cast<std::uint64_t>(axis.ranks));
    most.scratch = std::max(most.scratch, one.scratch);
    most.landing = std::max(most.landing, one.landing);
    most.outbox = std::max(most.outbox, one.outbox);
  }
  std::vector<PlanLine> lines = {{"communicator scratch", Place::device, most.scratch, Lifetime::use}};
  if (axis.way == Way::gloo) {
    const std::uint64_t gaps = piece_alignment * static_cast<std::uint64_t>(axis.ranks - 1);
    lines.push_back(
        {"communicator landing", Place::device, most.landing + (most.landing > 0 ? gaps : 0), Lifetime::use});
  }
  if (axis.way == Way::shared_memory) {  // two outboxes take turns
    lines.push_back({"shared outboxes", Place::host, 2 * rounded(most.outbox, outbox_step), Lifetime::use});
  }
  std::erase_if(lines, [](const PlanLine& line) { return line.bytes == 0; });
  return lines;
}

// Measured on Debian 12 (g++ 12, OpenBLAS 0.3.21), x86-64, as RssAnon of workers of small jobs at their end less what
// their arenas held: 16 to 19 MiB, 0.1 MiB more for each thread that computes, 3 MiB with Gloo. Without files that
// are mapped.
PlanLine process_memory(int threads, bool gloo) {
  constexpr std::uint64_t base = std::uint64_t{18} << 20, each_thread = std::uint64_t{100} << 10,
                          of_gloo = std::uint64_t{3} << 20;
  return {"process", Place::host, base + each_thread * static_cast<std::uint64_t>(threads) + (gloo ? of_gloo : 0)};
}

}  // namespace ananke::host
