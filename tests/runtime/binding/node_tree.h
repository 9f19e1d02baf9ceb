// Folders that hold a node's proc and sys.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "tests/temporary_folder.h"

namespace ananke {

class NodeTree {
 public:
  explicit NodeTree(void (*fill)(NodeTree&)) { fill(*this); }
  const std::filesystem::path& path() const { return folder_.path(); }
  void file(const std::string& name, const std::string& text) { folder_.write(name, text + "\n"); }
  // `place`: below sys, "devices/pci0000:00/0000:00:01.0/0000:19:00.0".
  void device(const std::string& place, int numa) { file("sys/" + place + "/numa_node", std::to_string(numa)); }
  void link(const std::string& name, const std::string& place) {
    std::filesystem::create_directories((path() / name).parent_path());
    std::filesystem::create_directory_symlink(path() / "sys" / place, path() / name);
  }
  void gpu(const std::string& uuid, const std::string& place, int numa) {
    device(place, numa);
    const std::string bus = std::filesystem::path(place).filename();
    link("sys/bus/pci/devices/" + bus, place);
    file("proc/driver/nvidia/gpus/" + bus + "/information",
         "Model: \t NVIDIA GH200\nGPU UUID: \t " + uuid + "\nIRQ: 7");
  }
  void adapter(const std::string& name, const std::string& place, int numa, bool active = true) {
    device(place, numa);
    const std::string folder = "sys/class/infiniband/" + name;
    file(folder + "/ports/1/state", active ? "4: ACTIVE" : "1: DOWN");
    link(folder + "/device", place);
  }
  // What the kernel says of the process that reads.
  void process(const std::string& cpus, const std::string& memory) {
    file("proc/self/status",
         fmt::format("Name:\tananke\nCpus_allowed_list:\t{}\nMems_allowed_list:\t{}", cpus, memory));
  }

 private:
  TemporaryFolder folder_;
};

inline void gh200_node(NodeTree& tree) {
  for (int node = 0; node < 36; ++node) {
    const std::string cpus = node < 4 ? fmt::format("{}-{}", 72 * node, 72 * node + 71) : "";
    tree.file(fmt::format("sys/devices/system/node/node{}/cpulist", node), cpus);
  }
  for (int i = 0; i < 4; ++i) {
    tree.gpu(fmt::format("GPU-0000000{}", i), fmt::format("devices/pci000{0}9:00/000{0}9:00:00.0/000{0}9:01:00.0", i),
             i);
    tree.adapter(fmt::format("mlx5_{}", i), fmt::format("devices/pci000{0}:00/000{0}:00:00.0/000{0}:01:00.0", 2 * i),
                 i);
  }
}

inline void switched_node(NodeTree& tree) {
  tree.file("sys/devices/system/node/node0/cpulist", "0-15");
  const std::string first = "devices/pci0000:10/0000:10:01.0/0000:11:00.0",
                    second = "devices/pci0000:10/0000:10:02.0/0000:21:00.0";
  tree.gpu("GPU-a", first + "/0000:12:00.0/0000:13:00.0", 0);
  tree.gpu("GPU-b", second + "/0000:22:00.0/0000:23:00.0", 0);
  tree.adapter("mlx5_0", first + "/0000:12:01.0/0000:14:00.0", 0);
  tree.adapter("mlx5_1", second + "/0000:22:01.0/0000:24:00.0", 0);
  tree.adapter("mlx5_2", second + "/0000:22:02.0/0000:25:00.0", 0, false);
  tree.adapter("mlx5_9", "devices/pci0000:80/0000:80:01.0/0000:81:00.0", 1);
}

}  // namespace ananke
