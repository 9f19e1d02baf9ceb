#include "plugins/backend_cuda/cuda_memory.h"

#include <fmt/format.h>

#include <cstring>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "runtime/base/units.h"

namespace ananke::cuda {
namespace {

// Null where there is no more of it; any other result is an error.
void* taken(cudaError_t result, void* memory, std::size_t bytes, const char* name) {
  if (result == cudaSuccess) return memory;
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  detail::failed(result, fmt::format("reserve {} of {}", format_bytes(bytes), name));
}

}  // namespace

DeviceBlocks::DeviceBlocks(int device) : device_(device) {
  use_device(device_);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
}

DeviceBlocks::~DeviceBlocks() {
  cudaSetDevice(device_);
  cudaStreamDestroy(stream_);
}

void* DeviceBlocks::reserve(std::size_t bytes) {
  use_device(device_);
  void* memory = nullptr;
  const cudaError_t result = cudaMalloc(&memory, bytes);
  return taken(result, memory, bytes, name());
}

void DeviceBlocks::unreserve(void* block) noexcept {
  cudaSetDevice(device_);
  cudaFree(block);
}

void DeviceBlocks::clear(void* piece, std::size_t bytes) {
  use_device(device_);
  check(cudaMemsetAsync(piece, 0, bytes, stream_), "fill new device memory with zeros");
  check(cudaStreamSynchronize(stream_), "fill new device memory with zeros");
}

std::string DeviceBlocks::situation() const {
  std::size_t free = 0, total = 0;
  if (cudaSetDevice(device_) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) return "";
  return fmt::format("(CUDA device {} has {} free of {})", device_, format_bytes(free), format_bytes(total));
}

void* PinnedBlocks::reserve(std::size_t bytes) {
  use_device(device_);
  void* memory = nullptr;
  const cudaError_t result = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
  return taken(result, memory, bytes, name());
}

void PinnedBlocks::unreserve(void* block) noexcept {
  cudaSetDevice(device_);
  cudaFreeHost(block);
}

void PinnedBlocks::clear(void* piece, std::size_t bytes) { std::memset(piece, 0, bytes); }

std::string PinnedBlocks::situation() const {
  return "(see the limit on locked memory, `ulimit -l`, the memory limit of the container or job, and the node's free "
         "memory)";
}

}  // namespace ananke::cuda
