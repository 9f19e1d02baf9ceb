// Measurements on the GPUs of this node, each in a process of its own, all GPUs by their order on the PCI bus as NVML
// counts them. A CUDA call that fails throws Error with the call's name and CUDA's text.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace ananke::gpu_checks {

// Throws Error(resource): "cannot WHAT on GPU 3: CUDA says cudaErrorMemoryAllocation (out of memory)".
void check(cudaError_t result, const char* what);

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const;

 private:
  cudaStream_t stream_ = nullptr;
};

// At most 1 GiB each: on GPUs whose memory is cleared by the driver a larger one may pass its limit of time.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Seconds of one `work`, which puts something on the stream: warmed up, then repeated for about `least`, the median of
// seven spans between events of the device.
double seconds_of(const Stream& stream, const std::function<void()>& work, std::chrono::milliseconds least);

struct Rate {
  const char* name;  // "matmul"
  double value;
  const char* unit;
};

// Opens a context on the current GPU, runs a kernel, and copies 64 MiB of pinned memory there and back, changed by the
// kernel. Throws Error(numeric) where what comes back is wrong.
void use_once();
// 16-bit floats by cuBLASLt, 8192 x 8192 x 8192; the same bits each time, or Error(numeric).
std::vector<Rate> product_rates(std::chrono::milliseconds least);
std::vector<Rate> copy_rates(std::chrono::milliseconds least);
// An all-gather over these GPUs: bytes that each receives a second, in GB/s. Throws Error(stalled) where NCCL does not
// come to an end within the deadline.
double gather_rate(const std::vector<int>& gpus, std::chrono::milliseconds least, std::chrono::milliseconds deadline);

}  // namespace ananke::gpu_checks
