// Kernels of the checks. They return what the launch says.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ananke::gpu_checks {

// words[i] = 3 words[i] + 1.
cudaError_t change(std::uint32_t* words, std::size_t count, cudaStream_t stream);
// bf16 in [-1, 1), a function of index and seed.
cudaError_t fill_bf16(void* out, std::size_t count, std::uint32_t seed, cudaStream_t stream);
// Adds to *different how many 32-bit words differ. `bytes` is a multiple of 4.
cudaError_t count_different(const void* a, const void* b, std::size_t bytes, unsigned long long* different,
                            cudaStream_t stream);

}  // namespace ananke::gpu_checks
