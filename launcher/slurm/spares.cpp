#include "launcher/slurm/spares.h"

#include <algorithm>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/health/report.h"

namespace ananke {
namespace {

const NodeHealth* find(const HealthReport& report, const std::string& node) {
  const auto found = std::ranges::find(report.node(), node, &NodeHealth::node);
  return found == report.node().end() ? nullptr : &*found;
}

// Free memory and page cache of every NUMA node with CPUs.
std::vector<double> free_of(const NodeHealth& node) {
  std::vector<double> free;
  for (const CheckResult& check : node.check()) {
    if (check.id() != "mem.numa_cpu") continue;
    for (const HealthValue& value : check.value()) {
      if (value.name() == "free") free.push_back(value.number());
    }
  }
  return free;
}

// Why the ranks do not fit; empty: they do.
std::string why_small(const NodeHealth* node, int ranks, std::uint64_t bytes) {
  const std::vector<double> free = node ? free_of(*node) : std::vector<double>{};
  if (free.empty()) return "its free memory is not known";
  const int places = static_cast<int>(free.size());
  double have = 0, need = 0;
  if (ranks >= places) {  // a rank stays on one NUMA node
    have = *std::ranges::min_element(free);
    need = static_cast<double>(bytes) * ((ranks + places - 1) / places);
  } else {
    for (const double one : free) have += one;
    need = static_cast<double>(bytes) * ranks;
  }
  if (have >= need) return "";
  return fmt::format("{} of host memory {}, and its ranks need {}", format_bytes(static_cast<std::uint64_t>(have)),
                     ranks >= places ? "on its fullest NUMA node" : "in all",
                     format_bytes(static_cast<std::uint64_t>(need)));
}

template <class Why>
void leave_out(LiveNodes* nodes, const Why& why) {
  std::vector<std::string> kept;
  for (const std::string& node : nodes->live) {
    const std::string reason = why(node);
    reason.empty() ? kept.push_back(node) : void(nodes->gone.emplace_back(node, reason));
  }
  nodes->live = std::move(kept);
}

}  // namespace

int ranks_per_node_with_spares(int ranks, int nodes, int spares) {
  const int used = nodes - spares;
  return spares > 0 && used > 0 && ranks % used == 0 ? ranks / used : 0;
}

void leave_out_bad(const HealthReport& report, LiveNodes* nodes) {
  leave_out(nodes, [&](const std::string& name) {
    const NodeHealth* node = find(report, name);
    if (node && !is_bad(node->verdict())) return std::string();
    return node ? fmt::format("{} ({})", HealthVerdict_Name(node->verdict()), node_summary(*node))
                : std::string("UNKNOWN (it was not asked)");
  });
}

void leave_out_small(const HealthReport& report, int ranks_per_node, std::uint64_t host_bytes, LiveNodes* nodes) {
  leave_out(nodes, [&](const std::string& name) { return why_small(find(report, name), ranks_per_node, host_bytes); });
}

}  // namespace ananke
