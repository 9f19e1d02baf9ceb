// What operators must know of the device to choose their grids, read once when the device is opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ananke::cuda {

struct DeviceFacts {
  int device = 0;                         // ordinal within this process
  std::string name;                       // "NVIDIA H200"
  int major = 0, minor = 0;               // compute capability
  int multiprocessors = 0;                // SMs
  int threads_per_multiprocessor = 0;     // resident at once
  std::size_t shared_per_block = 0;       // bytes that a block may use as it is (48 KiB)
  std::size_t shared_per_block_most = 0;  // bytes that it may ask for by cudaFuncSetAttribute (227 KiB on sm_90)
  std::size_t shared_per_multiprocessor = 0;
  std::size_t l2_bytes = 0;
  std::uint64_t memory_bytes = 0;  // of the device, in all

  // Of device `device`; makes no context. Error(resource) where there is none such.
  static DeviceFacts of(int device);
  // Of the GPUs that this backend is made for (H100, H200 and GH200 as SXM parts have the same), with device -1: to
  // plan sizes on a machine that has none. CUDA cannot be called then.
  static DeviceFacts expected();
};

}  // namespace ananke::cuda
