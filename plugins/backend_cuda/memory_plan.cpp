#include "plugins/backend_cuda/memory_plan.h"

#include "plugins/backend_cuda/cuda_device.h"

namespace ananke::cuda {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// On an H200 with CUDA 13 the process had 0.92 GiB beside its arenas. A context with its stacks and printf buffers takes
// about half a GiB of that.
constexpr std::uint64_t context = 512 * mib;
// Kernels of this backend, cuBLASLt and cuDNN on the device: all of them, or those that are launched.
constexpr std::uint64_t eager_modules = 768 * mib, lazy_modules = 256 * mib;
// NCCL's channels and their buffers (NCCL_BUFFSIZE 4 MiB a channel and direction, and the low-latency protocols').
constexpr std::uint64_t each_communicator = 256 * mib;
// Of the host: libraries, the driver's structures, NCCL's proxy buffers.
constexpr std::uint64_t process = 1536 * mib;

}  // namespace

std::vector<PlanLine> device_overheads(const PlannedDevice& device) {
  const std::uint64_t modules = device.eager_modules ? eager_modules : lazy_modules;
  const std::uint64_t nccl = each_communicator * static_cast<std::uint64_t>(device.communicators);
  std::vector<PlanLine> lines = {{context_purpose, Place::device, context + modules + nccl},
                                 {ends_purpose, Place::device, device.memory_block},
                                 {"unused ends of pinned blocks", Place::host, device.pinned_block},
                                 {"reads (host)", Place::host, CudaDevice::landing_bytes},
                                 {"process", Place::host, process}};
  std::erase_if(lines, [](const PlanLine& line) { return line.bytes == 0; });
  return lines;
}

}  // namespace ananke::cuda
