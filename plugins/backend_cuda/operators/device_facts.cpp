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

}  // namespace ananke::cuda
