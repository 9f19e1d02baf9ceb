// GPUs as NVML describes them. A GPU that somebody uses is told apart from one that is broken.
#include <algorithm>
#include <cstdlib>
#include <set>

#include "ananke/site.pb.h"
#include "plugins/node_checks/node_checks.h"
#include "runtime/base/units.h"
#include "runtime/memory/node_reader.h"
#include "runtime/memory/room.h"

namespace ananke::node_checks {
namespace {

namespace fs = std::filesystem;
using GpuList = google::protobuf::RepeatedPtrField<GpuFacts>;

std::string entity_of(const GpuFacts& gpu) { return fmt::format("gpu{}", gpu.index()); }
std::string name_of(const GpuFacts& gpu) {
  return fmt::format("GPU {}{}", gpu.index(), gpu.pci().empty() ? "" : " (" + gpu.pci() + ")");
}

// The GPUs to look at. False: there are none, and `found` says why that is to be so, or not.
bool has_gpus(const CheckContext& context, Findings& found, std::string& why_not) {
  const std::uint32_t expected = context.site.hardware().gpus();
  const NodeGpus& gpus = context.gpus;
  if (!gpus.problem().empty() && (!gpus.no_driver() || expected > 0)) {
    const std::string site = expected > 0 ? fmt::format("; the site has {} GPUs a node", expected) : "";
    found.unknown(gpus.problem() + site, "load the NVIDIA driver, and see that libnvidia-ml.so.1 is found");
    return false;
  }
  if (!gpus.gpu().empty()) return true;
  if (expected > 0) found.unknown("NVML shows no GPU");
  why_not = "there is no GPU, and the site expects none";
  return false;
}

// One number of every GPU: a GPU that does not have it is passed over, one that does not tell is a finding.
struct Number {
  const char* field;
  bool (*has)(const GpuFacts&);
};

// False where it cannot be judged.
bool known(const GpuFacts& gpu, const Number& number, Findings& found) {
  if (number.has(gpu)) return true;
  const auto& none = gpu.unsupported();
  if (std::ranges::find(none, number.field) == none.end()) {
    found.unknown(fmt::format("{} does not tell its {}{}", name_of(gpu), number.field,
                              gpu.problem().empty() ? "" : ": " + gpu.problem()));
  }
  return false;
}

// PCI addresses of NVIDIA's display and 3D controllers: those that the driver has lost are still there.
std::vector<std::string> on_the_bus(const fs::path& root) {
  std::vector<std::string> found;
  const fs::path all = root / "sys/bus/pci/devices";
  for (const std::string& address : names_in(all)) {
    const std::string vendor = line_of(all / address / "vendor").value_or("");
    const std::string type = line_of(all / address / "class").value_or("");
    if (vendor == "0x10de" && type.starts_with("0x03")) found.push_back(address);
  }
  return found;
}

CheckResult check_count(const CheckContext& context) {
  Findings found(context);
  std::string why_not;
  if (!has_gpus(context, found, why_not)) return found.skipped(why_not);
  std::set<std::string> uuids, places;
  for (const GpuFacts& gpu : context.gpus.gpu()) {
    if (!gpu.problem().empty()) found.fail(DEFECT, name_of(gpu) + ": " + gpu.problem(), "reset the GPU or the node");
    if (gpu.problem().empty() && !gpu.has_uuid()) found.unknown(name_of(gpu) + " does not tell its uuid");
    if (gpu.has_uuid() && !uuids.insert(gpu.uuid()).second) {
      found.fail(SETTING, fmt::format("{} has the UUID of another one", name_of(gpu)));
    }
    places.insert(gpu.pci());
  }
  const std::uint32_t expected = context.site.hardware().gpus();
  const std::size_t count = static_cast<std::size_t>(context.gpus.gpu_size());
  found.number("count", "", static_cast<double>(count), "", HealthValue::EQUAL);
  if (expected > 0 && count < expected) {
    std::vector<std::string> lost;
    for (const std::string& address : on_the_bus(context.root)) {
      if (!places.contains(address)) lost.push_back(address);
    }
    const std::string where =
        lost.empty() ? "" : fmt::format("; on the PCI bus and not with the driver: {}", joined(lost));
    found.fail(DEFECT, fmt::format("{} GPUs, and the site has {}{}", count, expected, where),
               "see the kernel's log for Xid errors; restart the node. In a control group with fewer devices, ask for "
               "all (--gres=gpu)");
  } else if (expected > 0 && count > expected) {
    found.warn(fmt::format("{} GPUs, and the site has {}", count, expected), "correct hardware.gpus of the site");
  }
  return found.result(fmt::format("{} GPUs, {}", count, context.gpus.gpu(0).name()));
}

// "570.86.15" against "570": by numbers.
bool is_older(const std::string& version, const std::string& least) {
  const char *a = version.c_str(), *b = least.c_str();
  for (;;) {
    char *after_a = nullptr, *after_b = nullptr;
    const long x = std::strtol(a, &after_a, 10), y = std::strtol(b, &after_b, 10);
    if (after_b == b) return false;
    if (after_a == a || x != y) return x < y;
    a = after_a + (*after_a == '.' ? 1 : 0);
    b = after_b + (*after_b == '.' ? 1 : 0);
  }
}

CheckResult check_driver(const CheckContext& context) {
  Findings found(context);
  std::string why_not;
  if (!has_gpus(context, found, why_not)) return found.skipped(why_not);
  const std::string& driver = context.gpus.driver();
  if (driver.empty()) {
    found.unknown("NVML does not tell the driver's version");
    return found.result("");
  }
  found.text("driver", "", driver, HealthValue::EQUAL);
  const std::string& least = context.site.health().driver();
  if (!least.empty() && is_older(driver, least)) {
    found.fail(SETTING, fmt::format("driver {} is older than {}", driver, least));
  }
  return found.result("driver " + driver);
}

// Processes of others on the GPU.
std::vector<std::string> users_of(const CheckContext& context, const GpuFacts& gpu) {
  std::vector<std::string> users;
  for (const GpuProcess& process : gpu.process()) {
    if (static_cast<int>(process.process()) == context.process) continue;
    users.push_back(describe_process(context.root, process.process()) +
                    (process.has_bytes() ? " with " + format_bytes(process.bytes()) : ""));
  }
  return users;
}

constexpr Number process_number{"process", [](const GpuFacts& gpu) { return gpu.processes_read(); }};
constexpr Number memory_number{"memory", [](const GpuFacts& gpu) { return gpu.has_memory_used(); }};
constexpr Number utilization_number{"utilization", [](const GpuFacts& gpu) { return gpu.has_utilization(); }};

CheckResult check_use(const CheckContext& context) {
  Findings found(context);
  std::string why_not;
  if (!has_gpus(context, found, why_not)) return found.skipped(why_not);
  for (const GpuFacts& gpu : context.gpus.gpu()) {
    const std::vector<std::string> users = users_of(context, gpu);
    if (!users.empty()) {
      found.fail(IN_USE, fmt::format("{} is used by {}: no defect", name_of(gpu), joined(users)),
                 "end what is left over, or wait for it");
    } else if (known(gpu, utilization_number, found) && gpu.utilization() > 0) {
      found.fail(IN_USE,
                 fmt::format("{} is busy ({}%), by a process that is not to be seen from here: no defect", name_of(gpu),
                             gpu.utilization()),
                 "see which job has it; processes of other containers and users may be hidden");
    }
    known(gpu, process_number, found);
  }
  return found.result("nobody uses a GPU");
}

// A process that has the device open, of those that this user may look at.
std::optional<unsigned> opener_of(const CheckContext& context, const GpuFacts& gpu) {
  const std::string device = fmt::format("/dev/nvidia{}", gpu.minor());
  for (const std::string& name : names_in(context.root / "proc")) {
    if (name.find_first_not_of("0123456789") != std::string::npos || std::stol(name) == context.process) continue;
    for (const std::string& number : names_in(context.root / "proc" / name / "fd")) {
      std::error_code none;
      if (fs::read_symlink(context.root / "proc" / name / "fd" / number, none) == device) {
        return static_cast<unsigned>(std::stoul(name));
      }
    }
  }
  return std::nullopt;
}

CheckResult check_idle_memory(const CheckContext& context) {
  Findings found(context);
  std::string why_not;
  if (!has_gpus(context, found, why_not)) return found.skipped(why_not);
  const std::uint64_t cache = room_of(read_node_memory(context.root, context.node), {}).cache_on_devices;
  for (const GpuFacts& gpu : context.gpus.gpu()) {
    if (!known(gpu, memory_number, found)) continue;
    // Page cache that lies in GPUs' memory counts as used.
    const std::uint64_t used = gpu.memory_used() - std::min(gpu.memory_used(), cache);
    found.number("used", entity_of(gpu), static_cast<double>(gpu.memory_used()), "bytes");
    const bool busy = !users_of(context, gpu).empty() || gpu.utilization() > 0;
    const std::optional<unsigned> opener = busy ? std::nullopt : opener_of(context, gpu);
    const std::string by = busy     ? "by processes (gpu.use)"
                           : opener ? "by " + describe_process(context.root, *opener)
                                    : "and no process that holds it is to be seen";
    found.judge("used", static_cast<double>(used),
                fmt::format("{}: {} of its memory are used, {}", name_of(gpu), format_bytes(used), by),
                busy || opener
                    ? "wait for it, or end it"
                    : "where no other container or user has the GPU, its memory was not given back: reset it",
                busy || opener ? IN_USE : DEFECT);
  }
  return found.result("GPUs' memory is free");
}

constexpr Number remap_number{"remap",
                              [](const GpuFacts& gpu) { return gpu.has_remap_pending() && gpu.has_remap_failure(); }};

CheckResult check_remap(const CheckContext& context) {
  Findings found(context);
  std::string why_not;
  if (!has_gpus(context, found, why_not)) return found.skipped(why_not);
  for (const GpuFacts& gpu : context.gpus.gpu()) {
    if (!known(gpu, remap_number, found)) continue;
    if (gpu.remap_failure())
      found.fail(DEFECT, name_of(gpu) + ": a memory row could not be remapped", "replace the GPU");
    if (gpu.remap_pending()) found.fail(DEFECT, name_of(gpu) + ": a memory row waits to be remapped", "reset the GPU");
  }
  return found.result("no memory row waits to be remapped");
}

constexpr Number volatile_number{"ecc_volatile", [](const GpuFacts& gpu) { return gpu.has_ecc_volatile(); }};
constexpr Number aggregate_number{"ecc_aggregate", [](const GpuFacts& gpu) { return gpu.has_ecc_aggregate(); }};

CheckResult check_ecc(const CheckContext& context) {
  Findings found(context);
  std::string why_not;
  if (!has_gpus(context, found, why_not)) return found.skipped(why_not);
  for (const GpuFacts& gpu : context.gpus.gpu()) {
    if (known(gpu, volatile_number, found)) {
      found.number("volatile", entity_of(gpu), static_cast<double>(gpu.ecc_volatile()), "");
      found.judge(
          "volatile", static_cast<double>(gpu.ecc_volatile()),
          fmt::format("{}: {} uncorrected errors since the driver was loaded", name_of(gpu), gpu.ecc_volatile()),
          "reset the GPU");
    }
    if (known(gpu, aggregate_number, found)) {
      found.number("aggregate", entity_of(gpu), static_cast<double>(gpu.ecc_aggregate()), "");
      found.judge("aggregate", static_cast<double>(gpu.ecc_aggregate()),
                  fmt::format("{}: {} uncorrected errors in its life", name_of(gpu), gpu.ecc_aggregate()),
                  "have the site look at the GPU");
    }
  }
  return found.result("no uncorrected memory errors");
}

constexpr Number throttle_number{"throttle_reasons", [](const GpuFacts& gpu) { return gpu.has_throttle_reasons(); }};
constexpr Number max_number{"sm_clock_max", [](const GpuFacts& gpu) { return gpu.has_sm_clock_max(); }};
constexpr Number temperature_number{"temperature", [](const GpuFacts& gpu) { return gpu.has_temperature(); }};
constexpr Number slowdown_number{"temperature_slowdown",
                                 [](const GpuFacts& gpu) { return gpu.has_temperature_slowdown(); }};
constexpr Number power_number{"power_limit", [](const GpuFacts& gpu) { return gpu.has_power_limit(); }};
constexpr Number clock_number{"sm_clock", [](const GpuFacts& gpu) { return gpu.has_sm_clock(); }};

struct Throttle {
  std::uint64_t bit;
  const char* text;
  bool bad;
};
constexpr Throttle throttles[] = {
    {0x08, "hardware slowdown", true},
    {0x40, "hardware thermal slowdown", true},
    {0x80, "hardware power brake", true},
    {0x20, "software thermal slowdown", false},
};

CheckResult check_clocks(const CheckContext& context) {
  Findings found(context);
  std::string why_not;
  if (!has_gpus(context, found, why_not)) return found.skipped(why_not);
  for (const GpuFacts& gpu : context.gpus.gpu()) {
    if (known(gpu, throttle_number, found)) {
      for (const Throttle& one : throttles) {
        if ((gpu.throttle_reasons() & one.bit) == 0) continue;
        const std::string text = fmt::format("{} is slowed down: {}", name_of(gpu), one.text);
        one.bad ? found.fail(DEFECT, text, "look at cooling and power of the node") : found.warn(text);
      }
    }
    if (known(gpu, max_number, found)) {
      found.number("sm_clock_max", entity_of(gpu), gpu.sm_clock_max(), "MHz", HealthValue::EQUAL);
    }
    if (known(gpu, power_number, found)) {
      found.number("power_limit", entity_of(gpu), gpu.power_limit(), "W", HealthValue::EQUAL);
    }
    if (known(gpu, clock_number, found)) found.number("sm_clock", entity_of(gpu), gpu.sm_clock(), "MHz");
    if (!known(gpu, temperature_number, found)) continue;
    found.number("temperature", entity_of(gpu), gpu.temperature(), "C");
    if (!known(gpu, slowdown_number, found)) continue;
    const double margin = static_cast<double>(gpu.temperature_slowdown()) - gpu.temperature();
    found.judge("margin", margin,
                fmt::format("{} has {} C, and slows down at {} C", name_of(gpu), gpu.temperature(),
                            gpu.temperature_slowdown()));
  }
  return found.result("no GPU is slowed down");
}

constexpr Number width_number{"pcie_width", [](const GpuFacts& gpu) { return gpu.has_pcie_width(); }};
constexpr Number width_max_number{"pcie_width_max", [](const GpuFacts& gpu) { return gpu.has_pcie_width_max(); }};
constexpr Number generation_number{"pcie_generation_max",
                                   [](const GpuFacts& gpu) { return gpu.has_pcie_generation_max(); }};
constexpr Number replay_number{"pcie_replays", [](const GpuFacts& gpu) { return gpu.has_pcie_replays(); }};

// The generation falls while a GPU is idle; the width does not.
CheckResult check_pcie(const CheckContext& context) {
  Findings found(context);
  std::string why_not;
  if (!has_gpus(context, found, why_not)) return found.skipped(why_not);
  for (const GpuFacts& gpu : context.gpus.gpu()) {
    if (known(gpu, generation_number, found)) {
      found.number("generation_max", entity_of(gpu), gpu.pcie_generation_max(), "", HealthValue::EQUAL);
    }
    if (known(gpu, replay_number, found)) {
      found.number("replays", entity_of(gpu), static_cast<double>(gpu.pcie_replays()), "", HealthValue::COUNTER);
    }
    if (!known(gpu, width_number, found) || !known(gpu, width_max_number, found)) continue;
    found.number("width", entity_of(gpu), gpu.pcie_width(), "lanes", HealthValue::EQUAL);
    if (gpu.pcie_width() < gpu.pcie_width_max()) {
      found.fail(DEFECT,
                 fmt::format("{} has {} PCIe lanes of {}", name_of(gpu), gpu.pcie_width(), gpu.pcie_width_max()),
                 "have the GPU seated anew");
    }
  }
  return found.result("all PCIe lanes are there");
}

constexpr Number c2c_number{"c2c_links", [](const GpuFacts& gpu) { return gpu.has_c2c_links(); }};

CheckResult check_c2c(const CheckContext& context) {
  Findings found(context);
  std::string why_not;
  if (!has_gpus(context, found, why_not)) return found.skipped(why_not);
  const std::uint32_t expected = context.site.health().c2c_links();
  std::uint32_t links = 0;
  for (const GpuFacts& gpu : context.gpus.gpu()) {
    if (!known(gpu, c2c_number, found)) {
      if (expected > 0)
        found.unknown(fmt::format("{} tells of no C2C links, and the site has {}", name_of(gpu), expected));
      continue;
    }
    links += gpu.c2c_links();
    if (gpu.c2c_links() == 0 && expected == 0) continue;
    found.number("active", entity_of(gpu), gpu.c2c_active(), "links", HealthValue::EQUAL);
    const std::uint32_t least = std::max(expected, gpu.c2c_links());
    if (gpu.c2c_active() < least) {
      found.fail(DEFECT, fmt::format("{} has {} C2C links of {}", name_of(gpu), gpu.c2c_active(), least));
    }
    if (!gpu.has_c2c_mb_s()) {
      found.unknown(name_of(gpu) + " does not tell the rate of its C2C links");
    } else {
      found.number("rate", entity_of(gpu), gpu.c2c_mb_s() * gpu.c2c_active() / 1e3, "GB/s", HealthValue::HIGHER);
    }
  }
  if (links == 0 && expected == 0) return found.skipped("these GPUs have no C2C links, and the site expects none");
  return found.result("all C2C links are active");
}

constexpr Number nvlink_number{"nvlink", [](const GpuFacts& gpu) { return gpu.nvlinks_read(); }};

CheckResult check_nvlink(const CheckContext& context) {
  Findings found(context);
  std::string why_not;
  if (!has_gpus(context, found, why_not)) return found.skipped(why_not);
  const std::uint32_t expected = context.site.health().nvlinks();
  std::uint32_t all = 0;
  for (const GpuFacts& gpu : context.gpus.gpu()) {
    if (!known(gpu, nvlink_number, found)) {
      if (expected > 0)
        found.unknown(fmt::format("{} tells of no NVLinks, and the site has {}", name_of(gpu), expected));
      continue;
    }
    const auto active = static_cast<std::uint32_t>(std::ranges::count(gpu.nvlink(), true));
    all += active;
    found.number("active", entity_of(gpu), active, "links", HealthValue::EQUAL);
    if (expected > 0 && active < expected) {
      found.fail(DEFECT, fmt::format("{} has {} NVLinks active of {}", name_of(gpu), active, expected));
    } else if (expected == 0 && active > 0 && active < static_cast<std::uint32_t>(gpu.nvlink_size())) {
      found.warn(fmt::format("{} has {} NVLinks active of {}", name_of(gpu), active, gpu.nvlink_size()));
    }
  }
  if (all == 0 && expected == 0) return found.skipped("no GPU has an active NVLink, and the site expects none");
  return found.result("all NVLinks are active");
}

}  // namespace

std::vector<NodeCheck> gpu_checks(const Site&) {
  const std::vector<std::string> sensors = {"gpus"};
  const double mib = 1 << 20;
  return {
      {{.id = "gpu.count", .description = "as many GPUs as the site has, all different", .sensors = sensors},
       check_count},
      {{.id = "gpu.driver", .description = "the driver's version", .sensors = sensors}, check_driver},
      {{.id = "gpu.use", .description = "nobody computes on a GPU", .sensors = sensors}, check_use},
      {{.id = "gpu.idle_mem",
        .description = "memory of GPUs that is used before a job begins",
        .thresholds = {{"used", "bytes", false, 1024 * mib, 15 * mib, "of one GPU, without page cache"}},
        .sensors = sensors},
       check_idle_memory},
      {{.id = "gpu.remap", .description = "memory rows that wait to be remapped, or could not be", .sensors = sensors},
       check_remap},
      {{.id = "gpu.ecc",
        .description = "uncorrected memory errors",
        .thresholds = {{"volatile", "", false, 0.0, {}, "since the driver was loaded"},
                       {"aggregate", "", false, 63.0, 7.0, "in the GPU's life"}},
        .sensors = sensors},
       check_ecc},
      {{.id = "gpu.clocks",
        .description = "reasons for lower clocks, temperature",
        .thresholds = {{"margin", "C", true, 0.0, 5.0, "to the temperature of slowing down"}},
        .sensors = sensors},
       check_clocks},
      {{.id = "gpu.pcie", .description = "lanes of PCIe", .sensors = sensors}, check_pcie},
      {{.id = "gpu.c2c", .description = "links between GPU and CPU", .sensors = sensors}, check_c2c},
      {{.id = "gpu.nvlink", .description = "links between GPUs", .sensors = sensors}, check_nvlink},
  };
}

}  // namespace ananke::node_checks
