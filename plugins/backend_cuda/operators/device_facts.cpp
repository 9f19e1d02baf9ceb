#include "plugins/backend_cuda/operators/device_facts.h"

#include "plugins/backend_cuda/check.h"

namespace ananke::cuda {

DeviceFacts DeviceFacts::of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "read the properties of CUDA device " + std::to_string(device));
  DeviceFacts facts;
  facts.device = device;
  facts.name = properties.name;
  facts.major = properties.major;
  facts.minor = properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.threads_per_multiprocessor = properties.maxThreadsPerMultiProcessor;
  facts.shared_per_block = properties.sharedMemPerBlock;
  facts.shared_per_block_most = properties.sharedMemPerBlockOptin;
  facts.shared_per_multiprocessor = properties.sharedMemPerMultiprocessor;
  facts.l2_bytes = static_cast<std::size_t>(properties.l2CacheSize);
  facts.memory_bytes = properties.totalGlobalMem;
  return facts;
}

DeviceFacts DeviceFacts::expected() {
  DeviceFacts facts;
  facts.device = -1;
  facts.name = "sm_90";
  facts.major = 9;
  facts.multiprocessors = 132;
  facts.threads_per_multiprocessor = 2048;
  facts.shared_per_block = std::size_t{48} << 10;
  facts.shared_per_block_most = std::size_t{227} << 10;
  facts.shared_per_multiprocessor = std::size_t{228} << 10;
  facts.l2_bytes = std::size_t{50} << 20;
  facts.memory_bytes = std::uint64_t{80} << 30;
  return facts;
}

}  // namespace ananke::cuda
