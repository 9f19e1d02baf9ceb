// Ranks as processes of this program, for what takes a process per rank: a GPU each, by NCCL.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>

#include "runtime/comm/rendezvous.h"

namespace ananke {

// Runs work(rank, rendezvous) in one forked process per rank and waits for all. The caller has no thread besides its
// own and has not used a device yet. What work() writes is lost but for SharedFloats made before. When a rank fails the
// others are killed and its error is thrown: Error(worker_failed) where a signal ended it.
void run_rank_processes(int ranks, std::chrono::milliseconds deadline,
                        const std::function<void(int rank, Rendezvous& rendezvous)>& work);

// Numbers that processes forked later share with this one; 0 at first. Throws Error(resource).
class SharedFloats {
 public:
  explicit SharedFloats(std::size_t count) : count_(count), data_(map(count)) {}
  std::span<float> all() const noexcept { return {data_.get(), count_}; }

 private:
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(float* data) const noexcept;
  };
  static std::unique_ptr<float, Unmap> map(std::size_t count);
  std::size_t count_;
  std::unique_ptr<float, Unmap> data_;
};

}  // namespace ananke
