#include "runtime/memory/messages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/base/units.h"
#include "runtime/memory/admission.h"

namespace ananke {
namespace {

using What = HeldMemory::What;

const char* name_of(What what) {
  switch (what) {
    case What::processes: return "processes";
    case What::shared: return "shared memory (/dev/shm, tmpfs)";
    case What::cache: return "page cache that cannot be dropped (dirty, locked)";
    case What::huge_pages: return "huge pages that are reserved";
    case What::slab: return "kernel slab";
    case What::page_tables: return "page tables";
    case What::kernel_stacks: return "kernel stacks";
    case What::kernel_areas: return "vmalloc and per-CPU areas";
    case What::unattributed: return "unattributed (nobody accounts for it)";
  }
  return "";
}

const char* advice_on(What what) {
  switch (what) {
    case What::processes: return "end the processes that hold it";
    case What::shared: return "remove what earlier jobs left in /dev/shm and other tmpfs mounts";
    case What::cache: return "wait until it is written (sync), or end what locks it";
    case What::huge_pages: return "have the site release the reserved huge pages (vm.nr_hugepages)";
    case What::unattributed: return "leave the node out and send the ticket below to the site's support";
    default: return "have the site look at what the kernel holds, or restart the node";
  }
}

const NodeMemory* memory_of(std::span<const RankNeed> needs, const std::string& node) {
  for (const RankNeed& need : needs) {
    if (need.node() == node && need.has_memory()) return &need.memory();
  }
  return nullptr;
}

std::string ranks_text(const std::vector<std::uint32_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string shortfall(const Shortage& s) {
  return fmt::format("{} need{} {}, {} are there: {} short", ranks_text(s.ranks), s.ranks.size() == 1 ? "s" : "",
                     format_bytes(s.need), format_bytes(s.have), format_bytes(s.need - s.have));
}

std::string holders_text(const NodeMemory& node) {
  std::string text;
  for (const MemoryHolder& holder : node.holder()) {
    text += fmt::format("{}process {} ({}) of user {} {}", text.empty() ? "" : ", ", holder.process(), holder.name(),
                        holder.user(), format_bytes(holder.bytes()));
  }
  return text.empty() ? "" : "\n    largest on the node: " + text;
}

// What could be had of these NUMA nodes if the site kept nothing back.
std::uint64_t kept_by_reserve(const Shortage& s, const NodeMemory& node, RoomOptions options) {
  options.reserve = 0;
  const NodeRoom room = room_of(node, options);
  std::uint64_t have = 0;
  for (const std::uint32_t id : s.numa) {
    if (const NumaRoom* numa = room.find(id)) have += numa->available;
  }
  return have - std::min(have, s.have);
}

std::string numa_text(const Shortage& s, const NodeMemory& node, const RoomOptions& options) {
  const NodeRoom room = room_of(node, options);
  std::string text = fmt::format("node {}, {} {}: {}", s.node,
                                 node.undivided()     ? "memory of the whole node, NUMA node"
                                 : s.numa.size() == 1 ? "NUMA node"
                                                      : "NUMA nodes",
                                 fmt::join(s.numa, ", "), shortfall(s));
  const std::uint64_t missing = s.need - s.have;
  const bool reserved = missing <= kept_by_reserve(s, node, options);
  bool shows_processes = false;
  for (const std::uint32_t id : s.numa) {
    const NumaRoom* numa = room.find(id);
    if (!numa) continue;
    text += fmt::format("\n    NUMA node {}: {} in all, {} free, {} of page cache that can be dropped, {} kept back",
                        id, format_bytes(numa->total), format_bytes(numa->free), format_bytes(numa->reclaimable),
                        format_bytes(numa->kept));
    if (numa->held.empty()) continue;
    text += "; held by " + held_text(*numa);
    if (reserved) continue;
    text += fmt::format("\n    {}", held_advice(*numa, missing / s.numa.size()));
    shows_processes = shows_processes || numa->held.front().what == What::processes;
  }
  if (reserved) {
    text += fmt::format(
        "\n    without the {} that the site's memory.reserve keeps back on every NUMA node it would fit: lower it "
        "where "
        "the node can spare that, or see that the plan needs less",
        format_bytes(options.reserve));
  }
  return text + (shows_processes ? holders_text(node) : "");
}

std::string text_of(const Shortage& s, std::span<const RankNeed> needs, const RoomOptions& options) {
  if (!s.device.empty()) {
    return fmt::format("node {}, device {}: {}; end what else uses the device, or see that the plan needs less of it",
                       s.node, s.device, shortfall(s));
  }
  if (s.cgroup) {
    return fmt::format(
        "node {}, control group {} ({} {}): {}; {} are used, {} of them page cache that can be dropped. Ask for more "
        "memory when the job is submitted (Slurm: --mem=0 gives all of a node)",
        s.node, s.cgroup->path(), s.cgroup->file(), format_bytes(s.cgroup->limit()), shortfall(s),
        format_bytes(s.cgroup->used()), format_bytes(s.cgroup->reclaimable()));
  }
  const NodeMemory* node = memory_of(needs, s.node);
  return node ? numa_text(s, *node, options) : fmt::format("node {}: {}", s.node, shortfall(s));
}

std::string row(const char* name, std::uint64_t bytes) {
  return fmt::format("    {:<48} {:>10}\n", name, format_bytes(bytes));
}

}  // namespace

std::string held_text(const NumaRoom& room) {
  std::string text;
  for (const HeldMemory& held : room.held) {
    if (held.bytes < room.total / 100) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(held.what), format_bytes(held.bytes));
  }
  return text.empty() ? "nothing large" : text;
}

std::string held_advice(const NumaRoom& room, std::uint64_t missing) {
  if (room.held.empty() || room.held.front().bytes < missing) {
    return "that is not what is missing: the plan must need less, or be on nodes with more";
  }
  return advice_on(room.held.front().what);
}

std::string ticket_text(const NodeMemory& node, const RoomOptions& options, const std::string& when) {
  std::string text = fmt::format(
      "Subject: node {}: memory that is neither free nor accounted for\n\nAt the start of a job, at {}, node {} had "
      "host memory that no counter of the kernel explains. Per NUMA node with CPUs, from\n"
      "/sys/devices/system/node/node*/meminfo and /proc/meminfo:\n",
      node.node(), when, node.node());
  for (const NumaRoom& room : room_of(node, options).numa) {
    text += fmt::format("  NUMA node {}\n", room.id) + row("total", room.total) + row("free", room.free) +
            row("page cache that can be dropped", room.reclaimable);
    for (const HeldMemory& held : room.held) text += row(name_of(held.what), held.bytes);
  }
  return text +
         "Unattributed is: total - free - page cache - slab - anonymous - shmem - huge pages - page tables - kernel "
         "stacks - vmalloc and\nper-CPU areas. Please look at the node, and drain it if this does not go away.\n";
}

std::string refusal_text(const AdmissionVerdict& verdict, std::span<const RankNeed> needs, const RoomOptions& options) {
  constexpr std::size_t in_full = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(in_full, verdict.shortages.size()); ++i) {
    text += "\n  " + text_of(verdict.shortages[i], needs, options);
  }
  for (std::size_t i = in_full; i < verdict.shortages.size(); ++i) {
    text += fmt::format("{}{}", i == in_full ? "\n  and on " : ", ", verdict.shortages[i].node);
  }
  for (const std::string& sentence : verdict.unknown) text += "\n  cannot be judged: " + sentence;
  for (const Shortage& s : verdict.shortages) {
    const NodeMemory* node = memory_of(needs, s.node);
    if (!node) continue;
    const NodeRoom room = room_of(*node, options);
    if (!std::ranges::any_of(s.numa, [&](std::uint32_t id) { return room.find(id) && is_leak(*room.find(id)); })) {
      continue;
    }
    text += "\n\nfor the site's support:\n" + ticket_text(*node, options, utc_now());
    break;
  }
  return text;
}

}  // namespace ananke
