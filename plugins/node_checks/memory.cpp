// Host memory by NUMA node. Page cache that the kernel can drop counts as free; memory-only NUMA nodes are those of
// GPUs, and the empty ones are nobody's.
#include <limits>

#include "ananke/site.pb.h"
#include "plugins/node_checks/node_checks.h"
#include "runtime/base/kernel_text.h"
#include "runtime/base/read_file.h"
#include "runtime/base/units.h"
#include "runtime/memory/cgroup.h"
#include "runtime/memory/messages.h"
#include "runtime/memory/node_reader.h"
#include "runtime/memory/room.h"

namespace ananke::node_checks {
namespace {

RoomOptions options_of(const Site& site) {
  RoomOptions options;
  if (!site.memory().node_bytes().empty()) options.node_bytes = parse_bytes(site.memory().node_bytes());
  return options;
}

// What was read, with what could not be read as a finding.
struct Memory {
  Memory(const CheckContext& context, Findings& found) : node(read_node_memory(context.root, context.node)) {
    for (const std::string& sentence : node.trouble()) found.unknown(sentence);
    room = room_of(node, options_of(context.site));
    if (room.numa.empty()) found.unknown("no NUMA node with CPUs and memory is to be seen");
    const std::uint32_t expected = context.site.health().cpu_numa_nodes();
    if (expected > 0 && room.numa.size() < expected) {
      found.unknown(fmt::format("the memory of {} NUMA nodes with CPUs is known, and the site has {}", room.numa.size(),
                                expected));
    }
  }
  NodeMemory node;
  NodeRoom room;
};

double as_double(std::uint64_t bytes) { return static_cast<double>(bytes); }
std::string numa(std::uint32_t id) { return fmt::format("numa{}", id); }

CheckResult check_numa(const CheckContext& context) {
  Findings found(context);
  const Memory memory(context, found);
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const NumaRoom& room : memory.room.numa) {
    const std::uint64_t free = room.free + room.reclaimable;
    least = std::min(least, free);
    found.number("free", numa(room.id), as_double(free), "bytes", HealthValue::HIGHER);
    found.judge(
        "free", as_double(free),
        fmt::format("NUMA node {}: {} free or page cache of {}, {} unattributed; held by {}", room.id,
                    format_bytes(free), format_bytes(room.total), format_bytes(room.unattributed), held_text(room)),
        held_advice(room, 0));
  }
  if (!found.has_threshold("free")) return found.skipped("the site has no threshold for it (health.threshold)");
  return found.result(fmt::format("{} NUMA nodes with CPUs; {} or more are free or page cache of each",
                                  memory.room.numa.size(), format_bytes(least)));
}

CheckResult check_unattributed(const CheckContext& context) {
  Findings found(context);
  const Memory memory(context, found);
  double worst = 0;
  for (const NumaRoom& room : memory.room.numa) {
    const double share = 100 * as_double(room.unattributed) / as_double(room.total);
    worst = std::max(worst, share);
    found.number("unattributed", numa(room.id), as_double(room.unattributed), "bytes");
    found.judge("share", share,
                fmt::format("NUMA node {}: {} of {} unattributed, {} free or page cache", room.id,
                            format_bytes(room.unattributed), format_bytes(room.total),
                            format_bytes(room.free + room.reclaimable)),
                "leave the node out and send the ticket to the site's support");
  }
  CheckResult result = found.result(fmt::format("at most {:.1f}% of a NUMA node", worst));
  if (result.verdict() == FAIL) {
    HealthValue& ticket = *result.add_value();
    ticket.set_name("ticket");
    ticket.set_text(ticket_text(memory.node, options_of(context.site), utc_now()));
  }
  return result;
}

// MemAvailable counts the memory of GPUs that the kernel shows as NUMA nodes: 380 GiB of it are there with no host
// memory left at all.
CheckResult check_available(const CheckContext& context) {
  Findings found(context);
  const Memory memory(context, found);
  const KernelTable table = parse_kernel_table(read_file(context.root / "proc/meminfo").value_or(""));
  const auto available = table.find("MemAvailable");
  if (available == table.end()) {
    found.unknown("/proc/meminfo has no MemAvailable");
    return found.result("");
  }
  std::uint64_t on_devices = 0;
  for (const NumaMemory& one : memory.node.numa()) {
    if (one.read() && one.cpus().empty()) on_devices += one.free() + one.active_file() + one.inactive_file();
  }
  const std::uint64_t host = available->second - std::min(available->second, on_devices);
  found.number("available", "", as_double(host), "bytes");
  found.judge("available", as_double(host),
              fmt::format("{} available in host memory ({} by MemAvailable, {} of them in GPUs' memory)",
                          format_bytes(host), format_bytes(available->second), format_bytes(on_devices)));
  if (!found.has_threshold("available")) return found.skipped("the site has no threshold for it (health.threshold)");
  return found.result(fmt::format("{} of host memory", format_bytes(host)));
}

CheckResult check_cgroup(const CheckContext& context) {
  Findings found(context);
  if (!read_file(context.root / "proc/self/cgroup")) found.unknown("/proc/self/cgroup cannot be read");
  const CgroupReading reading = read_cgroup_limits(context.root);
  for (const std::string& sentence : reading.trouble) found.unknown(sentence);
  if (reading.limits.empty()) return found.result("no control group limits memory");
  std::string text;
  for (const CgroupLimit& limit : reading.limits) {
    const std::uint64_t used = limit.used() - std::min(limit.used(), limit.reclaimable());
    const std::uint64_t room = limit.limit() - std::min(limit.limit(), used);
    text = fmt::format("control group {} ({}) leaves {} of {}", limit.path(), limit.file(), format_bytes(room),
                       format_bytes(limit.limit()));
    found.number("room", limit.path(), as_double(room), "bytes");
    found.judge("room", as_double(room), text, "ask for more memory when the job is submitted (Slurm: --mem=0)",
                SETTING);
  }
  if (!found.has_threshold("room")) return found.skipped(text + "; the site does not say how much a job needs");
  return found.result(text);
}

CheckResult check_device_cache(const CheckContext& context) {
  Findings found(context);
  const Memory memory(context, found);
  int devices = 0;
  for (const NumaMemory& one : memory.node.numa()) {
    if (!one.read() || !one.cpus().empty() || one.total() == 0) continue;
    ++devices;
    const double share = 100 * as_double(one.file_pages()) / as_double(one.total());
    found.number("cache", numa(one.id()), share, "%");
    found.judge("share", share,
                fmt::format("NUMA node {}, a GPU's memory: {} of {} are page cache", one.id(),
                            format_bytes(one.file_pages()), format_bytes(one.total())),
                "drivers before R570 do not drop it when a GPU asks for memory: drop caches, or load a newer driver");
  }
  if (devices == 0) return found.skipped("no GPU's memory is a NUMA node here (other hardware, or CDMM)");
  return found.result(fmt::format("the memory of {} GPUs holds no page cache to speak of", devices));
}

CheckResult check_shared(const CheckContext& context) {
  Findings found(context);
  const Memory memory(context, found);
  std::uint64_t shared = 0, huge = 0;
  for (const NumaMemory& one : memory.node.numa()) {
    if (!one.read() || one.cpus().empty()) continue;
    shared += one.shmem();
    huge += one.huge_pages();
  }
  found.number("shmem", "", as_double(shared), "bytes");
  found.number("huge_pages", "", as_double(huge), "bytes");
  found.judge("shmem", as_double(shared), fmt::format("{} in shared memory and tmpfs", format_bytes(shared)),
              "remove what earlier jobs left in /dev/shm and other tmpfs mounts");
  found.judge("huge_pages", as_double(huge), fmt::format("{} reserved as huge pages", format_bytes(huge)),
              "have the site release them (vm.nr_hugepages)");
  return found.result(fmt::format("{} in shared memory and tmpfs, {} reserved as huge pages", format_bytes(shared),
                                  format_bytes(huge)));
}

CheckResult check_layout(const CheckContext& context) {
  Findings found(context);
  const NodeMemory node = read_node_memory(context.root, context.node);
  const NodeRoom room = room_of(node, {});
  for (const std::string& sentence : node.trouble()) found.unknown(sentence);
  std::size_t devices = 0, empty = 0;
  for (const NumaMemory& one : node.numa()) {
    if (one.read() && one.cpus().empty()) ++(one.total() > 0 ? devices : empty);
  }
  found.number("with_cpus", "", static_cast<double>(room.numa.size()), "", HealthValue::EQUAL);
  found.number("of_gpus", "", static_cast<double>(devices), "", HealthValue::EQUAL);
  const std::string text =
      fmt::format("{} NUMA nodes with CPUs, {} of GPUs' memory, {} empty", room.numa.size(), devices, empty);
  const std::uint32_t expected = context.site.health().cpu_numa_nodes();
  if (expected == 0) return found.skipped(text + "; the site does not say how many there should be");
  if (node.undivided()) {
    found.unknown("the kernel shows no NUMA nodes here");
  } else if (node.trouble().empty() && room.numa.size() != expected) {
    found.fail(DEFECT, fmt::format("{}; with CPUs there should be {}", text, expected));
  }
  return found.result(text);
}

// What all ranks of a node are said to need.
std::optional<double> needed(const Site& site) {
  if (site.hardware().host_memory().empty() || site.hardware().gpus() == 0) return std::nullopt;
  return as_double(parse_bytes(site.hardware().host_memory())) * site.hardware().gpus();
}

}  // namespace

std::vector<NodeCheck> memory_checks(const Site& site) {
  const std::vector<std::string> sensors = {"proc/meminfo", "sys/devices/system/node/node*/meminfo",
                                            "sys/devices/system/node/node*/cpulist"};
  const double gib = as_double(std::uint64_t{1} << 30);
  return {
      {{.id = "mem.numa_cpu",
        .description = "free memory and page cache of each NUMA node with CPUs",
        .thresholds = {{"free", "bytes", true, {}, {}, "free or page cache that can be dropped, per NUMA node"}},
        .sensors = sensors},
       check_numa},
      {{.id = "mem.unattributed",
        .description = "memory that is neither free nor accounted for, of each NUMA node with CPUs",
        .thresholds = {{"share", "%", false, 12.5, 8.0, "of the NUMA node's memory"}},
        .sensors = sensors},
       check_unattributed},
      {{.id = "mem.available",
        .description = "MemAvailable without the memory of GPUs",
        .thresholds = {{"available", "bytes", true, {}, {}, "of the node"}},
        .sensors = sensors},
       check_available},
      {{.id = "mem.cgroup",
        .description = "what the limits of control groups leave",
        .thresholds = {{"room", "bytes", true, needed(site), {}, "default: hardware.host_memory of all GPUs"}},
        .sensors = {"proc/self/cgroup"}},
       check_cgroup},
      {{.id = "mem.hbm_cache",
        .description = "page cache in the memory of GPUs",
        .thresholds = {{"share", "%", false, {}, 5.0, "of a GPU's memory"}},
        .sensors = sensors},
       check_device_cache},
      {{.id = "mem.shared",
        .description = "shared memory, tmpfs and huge pages that are taken",
        .thresholds = {{"shmem", "bytes", false, {}, gib, "of the node"}, {"huge_pages", "bytes", false, {}, gib, ""}},
        .sensors = sensors},
       check_shared},
      {{.id = "numa.layout",
        .description = "NUMA nodes with CPUs, of GPUs, and empty ones",
        .sensors = {"sys/devices/system/node/node*/meminfo", "sys/devices/system/node/node*/cpulist"}},
       check_layout},
  };
}

}  // namespace ananke::node_checks
