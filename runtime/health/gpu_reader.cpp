#include "runtime/health/gpu_reader.h"

#include <google/protobuf/text_format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/kernel_text.h"
#include "runtime/base/read_file.h"
#include "runtime/health/nvml.h"

namespace ananke {
namespace {

// A number of a GPU, into its field.
class Facts {
 public:
  Facts(const Nvml& nvml, GpuFacts& facts) : nvml_(nvml), facts_(facts) {}

  template <class Ask, class Set>
  void fill(const char* field, const Ask& ask, const Set& set) {
    const int result = ask();
    if (result == Nvml::success) {
      set();
    } else if (result == Nvml::not_supported) {
      facts_.add_unsupported(field);
    } else if (result == Nvml::gpu_is_lost || result == Nvml::reset_required) {
      facts_.set_problem(nvml_.text_of(result));
    }
  }
  template <class Set>
  void fill_unsigned(const char* field, const Nvml::GetUnsigned ask, Nvml::Device gpu, const Set& set) {
    unsigned value = 0;
    fill(
        field, [&] { return ask ? ask(gpu, &value) : Nvml::no_function; }, [&] { set(value); });
  }

 private:
  const Nvml& nvml_;
  GpuFacts& facts_;
};

void read_identity(const Nvml& nvml, Nvml::Device gpu, Facts& read, GpuFacts& facts) {
  char text[96] = {};
  read.fill(
      "uuid", [&] { return nvml.uuid(gpu, text, sizeof text); }, [&] { facts.set_uuid(text); });
  read.fill(
      "name", [&] { return nvml.name(gpu, text, sizeof text); }, [&] { facts.set_name(text); });
  Nvml::PciInfo pci{};
  read.fill(
      "pci", [&] { return nvml.pci_info(gpu, &pci); },
      [&] { facts.set_pci(fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device)); });
  read.fill_unsigned("minor", nvml.minor_number, gpu, [&](unsigned value) { facts.set_minor(value); });
}

void read_use(const Nvml& nvml, Nvml::Device gpu, Facts& read, GpuFacts& facts) {
  Nvml::Memory memory{};
  memory.version = Nvml::memory_version;
  read.fill(
      "memory", [&] { return nvml.memory_info(gpu, &memory); },
      [&] {
        facts.set_memory_total(memory.total);
        facts.set_memory_used(memory.used);
      });
  Nvml::Utilization utilization{};
  read.fill(
      "utilization", [&] { return nvml.utilization(gpu, &utilization); },
      [&] { facts.set_utilization(utilization.gpu); });
  std::vector<Nvml::Process> processes(64);
  unsigned count = static_cast<unsigned>(processes.size());
  int result = nvml.processes(gpu, &count, processes.data());
  if (result == Nvml::insufficient_size) {
    processes.resize(count + 16);
    count = static_cast<unsigned>(processes.size());
    result = nvml.processes(gpu, &count, processes.data());
  }
  read.fill(
      "process", [&] { return result; },
      [&] {
        facts.set_processes_read(true);
        for (unsigned i = 0; i < count; ++i) {
          GpuProcess& process = *facts.add_process();
          process.set_process(processes[i].pid);
          if (processes[i].bytes != ~0ULL) process.set_bytes(processes[i].bytes);
        }
      });
}

void read_clocks(const Nvml& nvml, Nvml::Device gpu, Facts& read, GpuFacts& facts) {
  unsigned value = 0;
  const auto clock = [&](int (*ask)(Nvml::Device, int, unsigned*)) {
    return [&value, ask, gpu] { return ask(gpu, Nvml::clock_sm, &value); };
  };
  read.fill("sm_clock", clock(nvml.clock), [&] { facts.set_sm_clock(value); });
  read.fill("sm_clock_max", clock(nvml.max_clock), [&] { facts.set_sm_clock_max(value); });
  unsigned long long reasons = 0;
  read.fill(
      "throttle_reasons", [&] { return nvml.throttle_reasons(gpu, &reasons); },
      [&] { facts.set_throttle_reasons(reasons); });
  read.fill(
      "temperature", [&] { return nvml.temperature(gpu, 0, &value); }, [&] { facts.set_temperature(value); });
  read.fill(
      "temperature_slowdown", [&] { return nvml.temperature_threshold(gpu, Nvml::slowdown, &value); },
      [&] { facts.set_temperature_slowdown(value); });
  read.fill_unsigned("power_limit", nvml.power_limit, gpu, [&](unsigned mw) { facts.set_power_limit(mw / 1000); });
}

void read_links(const Nvml& nvml, Nvml::Device gpu, Facts& read, GpuFacts& facts) {
  read.fill_unsigned("pcie_generation", nvml.pcie_generation, gpu, [&](unsigned v) { facts.set_pcie_generation(v); });
  read.fill_unsigned("pcie_generation_max", nvml.pcie_generation_max, gpu,
                     [&](unsigned v) { facts.set_pcie_generation_max(v); });
  read.fill_unsigned("pcie_width", nvml.pcie_width, gpu, [&](unsigned v) { facts.set_pcie_width(v); });
  read.fill_unsigned("pcie_width_max", nvml.pcie_width_max, gpu, [&](unsigned v) { facts.set_pcie_width_max(v); });
  read.fill_unsigned("pcie_replays", nvml.pcie_replays, gpu, [&](unsigned v) { facts.set_pcie_replays(v); });
  for (unsigned link = 0; link < Nvml::most_links; ++link) {
    unsigned active = 0;
    const int result = nvml.nvlink_state(gpu, link, &active);
    if (result == Nvml::success) {
      facts.add_nvlink(active != 0);
      facts.set_nvlinks_read(true);
    } else if (link == 0) {
      read.fill(
          "nvlink", [&] { return result == Nvml::invalid_argument ? Nvml::not_supported : result; }, [] {});
      break;
    } else {
      break;  // past the last one
    }
  }
  unsigned count = 0, status = 0, rate = 0;
  const int result = nvml.field(gpu, Nvml::c2c_link_count, 0, &count);
  read.fill(
      "c2c_links", [&] { return result; }, [&] { facts.set_c2c_links(count); });
  for (unsigned link = 0; result == Nvml::success && link < count; ++link) {
    if (nvml.field(gpu, Nvml::c2c_link_status, link, &status) != Nvml::success) continue;
    facts.set_c2c_active(facts.c2c_active() + (status == 1 ? 1U : 0U));
    if (nvml.field(gpu, Nvml::c2c_link_max_rate, link, &rate) == Nvml::success) facts.set_c2c_mb_s(rate);
  }
}

void read_errors(const Nvml& nvml, Nvml::Device gpu, Facts& read, GpuFacts& facts) {
  unsigned long long count = 0;
  const auto ecc = [&](int counter) {
    return [&nvml, &count, gpu, counter] { return nvml.ecc(gpu, 1, counter, &count); };
  };
  read.fill("ecc_volatile", ecc(0), [&] { facts.set_ecc_volatile(count); });
  read.fill("ecc_aggregate", ecc(1), [&] { facts.set_ecc_aggregate(count); });
  unsigned corrected = 0, uncorrected = 0, pending = 0, failure = 0;
  read.fill(
      "remap", [&] { return nvml.remapped_rows(gpu, &corrected, &uncorrected, &pending, &failure); },
      [&] {
        facts.set_remap_pending(pending != 0);
        facts.set_remap_failure(failure != 0);
      });
}

NodeGpus ask_nvml() {
  NodeGpus gpus;
  const Nvml nvml;
  if (!nvml.loaded()) {
    gpus.set_no_driver(nvml.missing());
    gpus.set_problem(nvml.problem());
    return gpus;
  }
  char driver[80] = {};
  if (nvml.driver(driver, sizeof driver) == Nvml::success) gpus.set_driver(driver);
  unsigned count = 0;
  const int result = nvml.count(&count);
  if (result != Nvml::success) gpus.set_problem("NVML does not count its GPUs: " + nvml.text_of(result));
  for (unsigned i = 0; i < count; ++i) {
    GpuFacts& facts = *gpus.add_gpu();
    facts.set_index(i);
    Nvml::Device gpu = nullptr;
    if (const int found = nvml.device(i, &gpu); found != Nvml::success) {
      facts.set_problem(nvml.text_of(found));
      continue;
    }
    Facts read(nvml, facts);
    read_identity(nvml, gpu, read, facts);
    read_use(nvml, gpu, read, facts);
    read_clocks(nvml, gpu, read, facts);
    read_links(nvml, gpu, read, facts);
    read_errors(nvml, gpu, read, facts);
  }
  return gpus;
}

}  // namespace

NodeGpus read_node_gpus(const std::filesystem::path& root) {
  if (root == "/") return ask_nvml();
  NodeGpus gpus;
  const std::filesystem::path file = root / "nvml.textproto";
  const std::optional<std::string> text = read_file(file);
  if (!text) {
    gpus.set_no_driver(true);
    gpus.set_problem("nothing was recorded of its GPUs (nvml.textproto)");
  } else if (!google::protobuf::TextFormat::ParseFromString(*text, &gpus)) {
    gpus.Clear();
    gpus.set_problem(file.string() + " is no record of GPUs");
  }
  return gpus;
}

bool is_used_by_others(const GpuFacts& gpu, int own) {
  const auto other = [&](const GpuProcess& process) { return static_cast<int>(process.process()) != own; };
  return gpu.utilization() > 0 || std::ranges::any_of(gpu.process(), other);
}

std::string to_recorded_text(const NodeGpus& gpus) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(gpus, &text);
  return text;
}

}  // namespace ananke
