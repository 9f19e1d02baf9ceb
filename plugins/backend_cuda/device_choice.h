// Which GPU is whose. Pure functions, and the one call that asks the driver.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace ananke::cuda {

struct VisibleDevice {
  std::string uuid;  // "GPU-5a4b9e6c-..."
  std::string name;  // "NVIDIA H200"
};

// Those of this process, by ordinal. Error(resource) that tells a machine without a driver from a process that sees no
// device, and quotes CUDA_VISIBLE_DEVICES; Error(config) where that names what is no device, or not on this node.
std::vector<VisibleDevice> visible_devices();
// Why visible_devices() would throw, or empty: makes no context.
std::string why_no_device();

// "GPU-" and the 16 bytes in hexadecimal, grouped as in any UUID.
std::string uuid_text(std::span<const char, 16> bytes);

struct RankPlace {
  int rank = 0, ranks = 1;              // of the job
  int local_rank = 0, local_ranks = 1;  // of this node
};
// The ordinal of the device of a rank; `wanted` as BackendCuda.device. Error(config) naming what was asked and what is
// there.
int choose_device(const std::vector<VisibleDevice>& visible, const std::vector<std::string>& wanted,
                  const RankPlace& place);

// `uuids[i]` is the device of world rank `ranks[i]`, `processes[i]` where it runs ("jwb0012, process 4711").
// Error(config) naming two ranks that have one device.
void refuse_shared_devices(std::span<const int> ranks, std::span<const std::string> uuids,
                           std::span<const std::string> processes);

}  // namespace ananke::cuda
