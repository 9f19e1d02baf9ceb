// Streams beside the one that an operator is called on, for launches that do not depend on each other and are each too
// small for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>

#include "plugins/backend_cuda/operators/device_facts.h"

namespace ananke::cuda {

class SideStreams {
 public:
  static constexpr int count = 2;

  // On the current device; none, without CUDA, where `facts` are those expected.
  explicit SideStreams(const DeviceFacts& facts);
  ~SideStreams();
  SideStreams(const SideStreams&) = delete;
  SideStreams& operator=(const SideStreams&) = delete;

  // What is put on stream `at(i)` between begin and end comes after all that was put on `main` before, and before all
  // that is put on it after. One caller at a time: hold `lock` for as long.
  std::mutex lock;
  void begin(cudaStream_t main);
  void end(cudaStream_t main);
  // The i-th launch's, in turn.
  cudaStream_t at(cudaStream_t main, std::int64_t i) const {
    const auto turn = static_cast<std::size_t>(i % (count + 1));
    return turn == 0 ? main : streams_[turn - 1];
  }

 private:
  void close() noexcept;

  const int device_;
  std::array<cudaStream_t, count> streams_{};
  cudaEvent_t begun_ = nullptr;
  std::array<cudaEvent_t, count> ended_{};
};

}  // namespace ananke::cuda
