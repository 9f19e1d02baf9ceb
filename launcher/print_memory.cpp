#include "launcher/print_memory.h"

#include <fmt/format.h>

#include <cstdio>

#include "ananke/site.pb.h"
#include "launcher/child_process.h"
#include "runtime/base/process.h"
#include "runtime/base/units.h"
#include "runtime/config/job.h"
#include "runtime/engine/admit.h"
#include "runtime/engine/rank_plans.h"
#include "runtime/memory/admission.h"
#include "runtime/memory/cgroup.h"
#include "runtime/memory/node_reader.h"
#include "runtime/telemetry/tables.h"

namespace ananke {
namespace {

std::string compared(std::uint64_t planned, const std::string& limit_text) {
  const std::uint64_t limit = parse_bytes(limit_text);
  return planned <= limit
             ? fmt::format("fits into {}: {} are left", format_bytes(limit), format_bytes(limit - planned))
             : fmt::format("DOES NOT FIT into {}: {} too much", format_bytes(limit), format_bytes(planned - limit));
}

std::uint64_t host_bytes(const MemoryReport& report, bool on_host) {
  return report.host_planned() + (on_host ? report.device_planned() : 0);
}

void print_against_site(const RankPlans& plans, const Site& site) {
  const NodeHardware& hardware = site.hardware();
  if (!hardware.device_memory().empty() && !plans.on_host) {
    std::printf("device memory, at most %s of a rank: %s at site %s\n",
                format_bytes(plans.largest.device_planned()).c_str(),
                compared(plans.largest.device_planned(), hardware.device_memory()).c_str(), site.name().c_str());
  }
  if (!hardware.host_memory().empty()) {
    const std::uint64_t host = host_bytes(plans.host, plans.on_host);
    std::printf("host memory, at most %s of a rank: %s at site %s\n", format_bytes(host).c_str(),
                compared(host, hardware.host_memory()).c_str(), site.name().c_str());
  }
}

// As if all ranks needed what the one does that needs most.
void print_against_this_machine(const RankPlans& plans, const Site& site) {
  const std::filesystem::path root = site.memory().root();
  const std::string name = host_name();
  NodeMemory node = read_node_memory(root, name);
  std::vector<RankNeed> needs(static_cast<std::size_t>(plans.ranks));
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    RankNeed& need = needs[rank];
    need.set_rank(static_cast<std::uint32_t>(rank));
    need.set_node(name);
    need.set_host_bytes(host_bytes(plans.on_host ? plans.largest : plans.host, plans.on_host));
    for (const std::uint32_t id : read_own_numa_nodes(root, node)) need.add_numa(id);
    for (CgroupLimit& limit : read_cgroup_limits(root).limits) *need.add_cgroup() = std::move(limit);
  }
  add_memory_holders(root, node);
  *needs[0].mutable_memory() = std::move(node);
  const RoomOptions options = room_options(site);
  const AdmissionVerdict verdict = judge_admission(needs, options);
  const std::string said = verdict.fits()                ? "it fits"
                           : verdict.shortages.empty() ? "nobody can say whether it fits"
                                                       : "DOES NOT FIT";
  std::printf("host memory of this machine, all %d ranks on it: %s%s\n", plans.ranks, said.c_str(),
              verdict.fits() ? "" : refusal_text(verdict, needs, options).c_str());
}

void print(const LoadedJob& loaded, const Site& site) {
  const RankPlans plans = plan_ranks(loaded.job, site);
  const int node = ranks_of_node(site, plans.ranks);
  std::printf("%s: %d ranks, %d on a node; planned for %s\n\n", loaded.job.name().c_str(), plans.ranks, node,
              plans.looked_at == plans.ranks ? "all of them"
                                             : fmt::format("the {} that own or update most", plans.looked_at).c_str());
  std::printf("%s", memory_report_text(plans.largest).c_str());
  if (plans.host.rank() != plans.largest.rank() && plans.host.host_planned() > plans.largest.host_planned()) {
    std::printf("\nneeding most of the host's memory:\n%s", memory_report_text(plans.host).c_str());
  }
  std::printf("\n");
  if (plans.on_host) std::printf("the device is the host: both sums are of the host's memory\n");
  print_against_site(plans, site);
  if (site.start() == Site::LOCAL) print_against_this_machine(plans, site);
}

}  // namespace

int print_memory(const LoadedJob& loaded, const Site& site) {
  return run_in_child("the memory plan", [&] { print(loaded, site); });
}

}  // namespace ananke
