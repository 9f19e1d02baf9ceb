// Device memory of an operator's own, one piece for each stream that it is called on: work of one stream is in order,
// so a piece is never used twice at a time. For contracts that pass no workspace.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <string>
#include <vector>

#include "runtime/device/arena.h"
#include "runtime/operators/operator.h"

namespace ananke::cuda {

class StreamSlots {
 public:
  // `streams` pieces of `bytes` (a multiple of 256) each, filled with zeros as pieces of the arena are.
  StreamSlots(Arena& memory, const std::string& purpose, int streams, std::size_t bytes);
  // Thread-safe. Error(internal) for one stream more than there are pieces.
  Region of(cudaStream_t stream);

 private:
  const std::string purpose_;
  const std::size_t streams_, bytes_;
  const Buffer buffer_;
  std::mutex mutex_;
  std::vector<cudaStream_t> seen_;
};

}  // namespace ananke::cuda
