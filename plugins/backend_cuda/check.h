// Results of the CUDA libraries, as the product's errors.
//
//   check(cudaMalloc(&memory, bytes), "reserve 2 GiB of device memory");
//   scale_kernel<<<blocks, threads, 0, stream>>>(...);
//   ANANKE_CUDA_LAUNCHED("scale");
//
// A result that is not success throws Error: resource where the library says that memory, a device or a system resource
// is missing, config where driver and library do not fit together, worker_failed where a peer or the network is gone,
// internal for the rest. The message names the action, the library's name for the result, and its text.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>
#ifndef __CUDACC__  // files with kernels launch and no more: they compile faster without these
#include <cublasLt.h>
#include <nccl.h>
#endif

namespace ananke::cuda {

namespace detail {
[[noreturn]] void failed(cudaError_t result, std::string_view what);
void launched(const char* kernel);
}  // namespace detail

// `what`: the action as it stands in "cannot ...", with its object and numbers. It is evaluated on every call: where a
// message has to be made up, test the result first and throw by failed().
inline void check(cudaError_t result, std::string_view what) {
  if (result != cudaSuccess) detail::failed(result, what);
}

#ifndef __CUDACC__
namespace detail {
[[noreturn]] void failed(cublasStatus_t result, std::string_view what);
[[noreturn]] void failed(ncclResult_t result, std::string_view what);
}  // namespace detail

inline void check(cublasStatus_t result, std::string_view what) {
  if (result != CUBLAS_STATUS_SUCCESS) detail::failed(result, what);
}
// ncclInProgress counts as success: who calls a non-blocking communicator polls it (nccl_communicator.h).
inline void check(ncclResult_t result, std::string_view what) {
  if (result != ncclSuccess && result != ncclInProgress) detail::failed(result, what);
}
#endif

}  // namespace ananke::cuda

// After a kernel launch: a launch that was refused (its grid, its shared memory, no kernel for this device) throws here
// and names the kernel. What a kernel does wrong while it runs is seen by the next call that waits for it.
#define ANANKE_CUDA_LAUNCHED(kernel) ::ananke::cuda::detail::launched(kernel)
