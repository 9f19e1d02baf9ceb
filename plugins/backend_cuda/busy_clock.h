// How long a stream has worked, its waits for other streams left out: a timed event before and after each wait.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace ananke::cuda {

class BusyClock {
 public:
  BusyClock() = default;
  ~BusyClock();
  BusyClock(const BusyClock&) = delete;
  BusyClock& operator=(const BusyClock&) = delete;

  // Around a wait that `stream` is given.
  void wait_begins(cudaStream_t stream);
  void wait_ends(cudaStream_t stream);
  // Behind all work so far, for take().
  void mark(cudaStream_t stream);
  cudaEvent_t last_mark() const noexcept { return marks_[1]; }
  // Once last_mark() is reached: seconds of work up to it since the first mark.
  double take();

 private:
  struct Wait {
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  static void make(cudaEvent_t& event);

  std::vector<Wait> waits_;  // the first used_ are since marks_[0]; the others are kept for later
  std::size_t used_ = 0;
  cudaEvent_t marks_[2] = {nullptr, nullptr};  // the one that was taken last, and the newest
  bool marked_ = false;
  double seconds_ = 0;
};

}  // namespace ananke::cuda
