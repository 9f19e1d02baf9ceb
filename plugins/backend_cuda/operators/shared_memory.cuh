#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "plugins/backend_cuda/check.h"

namespace ananke::cuda {

// Shared memory beyond what a kernel may use as it is. Cheap where it was asked for before.
template <class Kernel>
void allow_shared(Kernel* kernel, std::size_t bytes) {
  if (bytes <= 48 << 10) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "give a kernel its shared memory");
}

}  // namespace ananke::cuda
