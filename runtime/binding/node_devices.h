// What of a node lies near what: CPUs of its NUMA nodes, GPUs by UUID, InfiniBand adapters, as the kernel's files say.
// `root` is the folder that holds proc and sys. What is not there is left out, never guessed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/kernel_text.h"

namespace ananke {

// By id; only those with CPUs. (Memory of GPUs, and places for it, are NUMA nodes too on some machines.)
struct NumaCpus {
  int id = 0;
  std::vector<NumberRange> cpus;
};
std::vector<NumaCpus> read_numa_cpus(const std::filesystem::path& root);

// Where a device is in the tree of PCI bridges: "devices/pci0000:40/0000:40:01.1/0000:41:00.0" below sys, and the NUMA
// node that the firmware names for it (-1: none).
struct PciPlace {
  std::string path;
  int numa = -1;
};

struct Gpu {
  std::string uuid;  // "GPU-5a4b9e6c-..."
  std::string bus;   // "0000:19:00.0"
  PciPlace place;
};
// As the NVIDIA driver lists them in proc/driver/nvidia/gpus.
std::vector<Gpu> read_gpus(const std::filesystem::path& root);

struct Adapter {
  std::string name;  // "mlx5_0"
  PciPlace place;
  bool active = false;  // one of its ports is
};
std::vector<Adapter> read_adapters(const std::filesystem::path& root);

// Those that share most of the way to the root of the tree with the device, or where none shares any its NUMA node; all
// that are equally near. Nothing where nothing says which are near.
std::vector<Adapter> nearest_adapters(const std::vector<Adapter>& adapters, const PciPlace& device);

}  // namespace ananke
