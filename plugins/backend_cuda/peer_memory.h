// Memory of the GPUs of one node that the ranks of a communicator reach by plain loads and stores: by CUDA's handles
// for other processes (CUDA IPC), by its address where ranks are threads of one process.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plugins/backend_cuda/cuda_device.h"
#include "runtime/tensor/tensor.h"

namespace ananke::cuda {

// Everyone's text, by rank; all ranks of the communicator call it, in the same order. Blocks.
using TellAll = std::function<std::vector<std::string>(const std::string& own)>;

class PeerMemory {
 public:
  // `device` outlives it. `agreed`: what must be the same on all ranks, e.g. settings, in words.
  PeerMemory(int rank, int size, CudaDevice& device, std::string agreed);
  // No kernel of this rank uses the others' memory any more.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  struct Piece {
    TensorView own;
    std::vector<std::byte*> at;  // by rank, as this process sees them
  };
  // Collective. Brings a piece of the device's arena within reach of all, and theirs within reach of this rank. Returns
  // why that cannot be had, the same text on all ranks, or empty. Error(config) where `agreed` differs.
  std::string add(const TensorView& own, const TellAll& tell);
  const std::vector<Piece>& pieces() const noexcept { return pieces_; }

 private:
  struct Card;
  std::byte* map(const Card& card, const Card& mine);
  std::byte* open(const Card& card);

  const int rank_, size_;
  CudaDevice& device_;
  const std::string agreed_;
  std::vector<Piece> pieces_;
  std::map<std::string, std::byte*> opened_;  // blocks of other processes, by handle
};

}  // namespace ananke::cuda
