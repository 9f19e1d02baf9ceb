// What NVML says of the GPUs of this machine, or what was recorded of another one. Never throws for what it finds.
#pragma once

#include <filesystem>

#include "ananke/health.pb.h"

namespace ananke {

// Under the root "/" NVML is asked: libnvidia-ml.so.1 is loaded by name, so that a machine without a driver is one
// where nothing can be known. Under another root stands the file that was recorded there: root/nvml.textproto (a
// NodeGpus). NVML may hang where a GPU does: for a process of its own.
NodeGpus read_node_gpus(const std::filesystem::path& root);

// Does another process than `own` use it, also one that cannot be seen from here?
bool is_used_by_others(const GpuFacts& gpu, int own);

// As the file of a recorded root.
std::string to_recorded_text(const NodeGpus& gpus);

}  // namespace ananke
