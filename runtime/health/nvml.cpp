#include "runtime/health/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

namespace ananke {
namespace {

// nvmlFieldValue_t.
struct FieldValue {
  std::uint32_t id, scope;
  std::int64_t timestamp, latency;
  int type, result;
  union {
    double d;
    unsigned u;
    unsigned long ul;
    unsigned long long ull;
  } value;
};

// Stands for a function that this version of the library does not have.
template <class... Arguments>
int not_there(Arguments...) {
  return Nvml::no_function;
}

template <class... Arguments>
void load(void* library, const char* symbol, int (*&function)(Arguments...)) {
  function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, symbol));
  if (function == nullptr) function = &not_there<Arguments...>;
}

}  // namespace

Nvml::Nvml() {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    const char* reason = dlerror();
    problem_ = fmt::format("NVML is not there ({})", reason ? reason : "libnvidia-ml.so.1");
    return;
  }
  int (*init)() = nullptr;
  load(library_, "nvmlInit_v2", init);
  error_string_ = reinterpret_cast<const char* (*)(int)>(dlsym(library_, "nvmlErrorString"));
  load(library_, "nvmlSystemGetDriverVersion", driver);
  load(library_, "nvmlDeviceGetCount_v2", count);
  load(library_, "nvmlDeviceGetHandleByIndex_v2", device);
  load(library_, "nvmlDeviceGetUUID", uuid);
  load(library_, "nvmlDeviceGetName", name);
  load(library_, "nvmlDeviceGetPciInfo_v3", pci_info);
  load(library_, "nvmlDeviceGetMemoryInfo_v2", memory_info);
  load(library_, "nvmlDeviceGetUtilizationRates", utilization);
  load(library_, "nvmlDeviceGetComputeRunningProcesses_v3", processes);
  load(library_, "nvmlDeviceGetClockInfo", clock);
  load(library_, "nvmlDeviceGetMaxClockInfo", max_clock);
  load(library_, "nvmlDeviceGetCurrentClocksThrottleReasons", throttle_reasons);
  if (throttle_reasons == &not_there<Device, unsigned long long*>) {
    load(library_, "nvmlDeviceGetCurrentClocksEventReasons", throttle_reasons);
  }
  load(library_, "nvmlDeviceGetTemperature", temperature);
  load(library_, "nvmlDeviceGetTemperatureThreshold", temperature_threshold);
  load(library_, "nvmlDeviceGetNvLinkState", nvlink_state);
  load(library_, "nvmlDeviceGetTotalEccErrors", ecc);
  load(library_, "nvmlDeviceGetRemappedRows", remapped_rows);
  load(library_, "nvmlDeviceGetMinorNumber", minor_number);
  load(library_, "nvmlDeviceGetEnforcedPowerLimit", power_limit);
  load(library_, "nvmlDeviceGetCurrPcieLinkGeneration", pcie_generation);
  load(library_, "nvmlDeviceGetMaxPcieLinkGeneration", pcie_generation_max);
  load(library_, "nvmlDeviceGetCurrPcieLinkWidth", pcie_width);
  load(library_, "nvmlDeviceGetMaxPcieLinkWidth", pcie_width_max);
  load(library_, "nvmlDeviceGetPcieReplayCounter", pcie_replays);
  load(library_, "nvmlDeviceGetFieldValues", field_values_);
  const int result = init();
  started_ = result == success;
  if (!started_) problem_ = "NVML does not start: " + text_of(result);
}

Nvml::~Nvml() {
  int (*shutdown)() = nullptr;
  if (started_) {
    load(library_, "nvmlShutdown", shutdown);
    shutdown();
  }
  if (library_) dlclose(library_);
}

std::string Nvml::text_of(int result) const {
  const char* text = error_string_ ? error_string_(result) : nullptr;
  return text ? text : fmt::format("error {}", result);
}

int Nvml::field(Device gpu, unsigned id, unsigned scope, unsigned* value) const {
  FieldValue one{};
  one.id = id;
  one.scope = scope;
  const int result = field_values_(gpu, 1, &one);
  if (result != success) return result;
  if (one.result != success) return one.result;
  // NVML_VALUE_TYPE_: 1 unsigned, 2 unsigned long, 3 unsigned long long; a small number reads the same in all.
  *value = one.value.u;
  return success;
}

}  // namespace ananke
