// NVML, loaded by name: what is used of it, in its own binary forms (nvml.h of CUDA 12 and 13; they are stable).
#pragma once

#include <cstdint>
#include <string>

namespace ananke {

class Nvml {
 public:
  using Device = void*;
  struct PciInfo {  // nvmlPciInfo_t
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
  };
  struct Memory {  // nvmlMemory_v2_t: without what the driver keeps for itself
    unsigned version;
    unsigned long long total, reserved, free, used;
  };
  static constexpr unsigned memory_version = 0x02000028;
  struct Utilization {
    unsigned gpu, memory;  // percent
  };
  struct Process {  // nvmlProcessInfo_v2_t
    unsigned pid;
    unsigned long long bytes;  // all ones: not known
    unsigned gpu_instance, compute_instance;
  };
  // Results, clocks, fields.
  static constexpr int success = 0, invalid_argument = 2, not_supported = 3, insufficient_size = 7, no_function = 13,
                       gpu_is_lost = 15, reset_required = 16;
  static constexpr int clock_sm = 1, slowdown = 1;
  static constexpr unsigned most_links = 36;
  static constexpr unsigned c2c_link_count = 170, c2c_link_status = 171, c2c_link_max_rate = 172;

  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool loaded() const { return problem_.empty(); }
  bool missing() const { return library_ == nullptr; }  // there is no such library
  const std::string& problem() const { return problem_; }
  std::string text_of(int result) const;
  // An unsigned value of nvmlDeviceGetFieldValues.
  int field(Device gpu, unsigned id, unsigned scope, unsigned* value) const;

  using GetUnsigned = int (*)(Device, unsigned*);
  using GetText = int (*)(Device, char*, unsigned);
  int (*driver)(char*, unsigned) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, Device*) = nullptr;
  GetText uuid = nullptr, name = nullptr;
  int (*pci_info)(Device, PciInfo*) = nullptr;
  int (*memory_info)(Device, Memory*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*processes)(Device, unsigned*, Process*) = nullptr;
  int (*clock)(Device, int, unsigned*) = nullptr;
  int (*max_clock)(Device, int, unsigned*) = nullptr;
  int (*throttle_reasons)(Device, unsigned long long*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*temperature_threshold)(Device, int, unsigned*) = nullptr;
  int (*nvlink_state)(Device, unsigned, unsigned*) = nullptr;
  int (*ecc)(Device, int, int, unsigned long long*) = nullptr;
  int (*remapped_rows)(Device, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  GetUnsigned minor_number = nullptr, power_limit = nullptr, pcie_generation = nullptr, pcie_generation_max = nullptr,
              pcie_width = nullptr, pcie_width_max = nullptr, pcie_replays = nullptr;

 private:
  void* library_ = nullptr;
  bool started_ = false;
  std::string problem_;
  const char* (*error_string_)(int) = nullptr;
  int (*field_values_)(Device, int, void*) = nullptr;
};

}  // namespace ananke
