#include <cstddef>
#include <cstdint>

#include "plugins/gpu_checks/kernels.h"

namespace ananke::gpu_checks {
namespace {

__global__ void change_kernel(std::uint32_t* words, std::size_t count) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    words[i] = 3 * words[i] + 1;
  }
}

// A cheap hash of the index: uniform in [-1, 1), no two runs differ.
__global__ void fill_kernel(std::uint16_t* bf16, std::size_t count, std::uint32_t seed) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761u + seed;
    x = (x ^ (x >> 15)) * 2246822519u;
    x ^= x >> 13;
    const float value = static_cast<float>(x >> 8) * (2.0f / 16777216.0f) - 1.0f;
    bf16[i] = static_cast<std::uint16_t>(__float_as_uint(value) >> 16);
  }
}

// Counts words that differ.
__global__ void differ_kernel(const std::uint32_t* a, const std::uint32_t* b, std::size_t count,
                              unsigned long long* different) {
  unsigned long long mine = 0;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    mine += a[i] != b[i] ? 1 : 0;
  }
  if (mine != 0) atomicAdd(different, mine);
}

}  // namespace

cudaError_t change(std::uint32_t* words, std::size_t count, cudaStream_t stream) {
  change_kernel<<<1024, 256, 0, stream>>>(words, count);
  return cudaGetLastError();
}

cudaError_t fill_bf16(void* out, std::size_t count, std::uint32_t seed, cudaStream_t stream) {
  fill_kernel<<<1024, 256, 0, stream>>>(static_cast<std::uint16_t*>(out), count, seed);
  return cudaGetLastError();
}

cudaError_t count_different(const void* a, const void* b, std::size_t bytes, unsigned long long* different,
                            cudaStream_t stream) {
  differ_kernel<<<1024, 256, 0, stream>>>(static_cast<const std::uint32_t*>(a), static_cast<const std::uint32_t*>(b),
                                          bytes / 4, different);
  return cudaGetLastError();
}

}  // namespace ananke::gpu_checks
