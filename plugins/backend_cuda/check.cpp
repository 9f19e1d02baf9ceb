#include "plugins/backend_cuda/check.h"

#include "runtime/base/error.h"

namespace ananke::cuda::detail {
namespace {

ErrorKind kind_of(cudaError_t result) {
  switch (result) {
    case cudaErrorMemoryAllocation:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorSystemNotReady: return ErrorKind::resource;
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion: return ErrorKind::config;
    default: return ErrorKind::internal;
  }
}

// What the reader can do; empty where nothing general is to be said.
const char* advice(cudaError_t result) {
  switch (result) {
    case cudaErrorMemoryAllocation:
      return "; use more ranks per shard axis, fewer rows per microbatch or more recompute, and see that nothing else "
             "uses the device (nvidia-smi)";
    case cudaErrorNoDevice: return "; see nvidia-smi and CUDA_VISIBLE_DEVICES";
    case cudaErrorInsufficientDriver: return "; load a newer NVIDIA driver, or build with an older CUDA toolkit";
    case cudaErrorNoKernelImageForDevice:
      return "; configure with -DANANKE_CUDA_ARCHITECTURES that has this device's (90 for H100, H200 and GH200)";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
      return "; a kernel before this call is at fault: run under compute-sanitizer to see which";
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable: return "; the device is faulty: drain this node";
    default: return "";
  }
}

}  // namespace

void failed(cudaError_t result, std::string_view what) {
  cudaGetLastError();  // what can be forgotten is: the next call has its own result
  fail(kind_of(result), "cannot {}: CUDA says {} ({}){}", what, cudaGetErrorName(result), cudaGetErrorString(result),
       advice(result));
}

void failed(cublasStatus_t result, std::string_view what) {
  const ErrorKind kind = result == CUBLAS_STATUS_ALLOC_FAILED    ? ErrorKind::resource
                         : result == CUBLAS_STATUS_ARCH_MISMATCH ? ErrorKind::config
                                                                 : ErrorKind::internal;
  fail(kind, "cannot {}: cuBLASLt says {} ({})", what, cublasLtGetStatusName(result), cublasLtGetStatusString(result));
}

void failed(ncclResult_t result, std::string_view what) {
  const ErrorKind kind = result == ncclRemoteError                                       ? ErrorKind::worker_failed
                         : result == ncclSystemError || result == ncclUnhandledCudaError ? ErrorKind::resource
                                                                                         : ErrorKind::internal;
  const char* last = ncclGetLastError(nullptr);
  fail(kind, "cannot {}: NCCL says {}{}{}; NCCL_DEBUG=WARN prints more", what, ncclGetErrorString(result),
       last && *last ? ": " : "", last ? last : "");
}

void launched(const char* kernel) {
  const cudaError_t result = cudaGetLastError();
  if (result != cudaSuccess) failed(result, std::string("launch kernel ") + kernel);
}

}  // namespace ananke::cuda::detail
