// Exchanges among the GPUs of one node by kernels of this backend, straight between their memories: what a communicator
// offers as all_to_all_rows() and sum_parts() (runtime/comm/communicator.h). Knows nothing of NCCL.
#pragma once

#include <memory>
#include <string>

#include "plugins/backend_cuda/cuda_device.h"
#include "plugins/backend_cuda/operators/faults.h"
#include "plugins/backend_cuda/peer_kernels.h"
#include "plugins/backend_cuda/peer_memory.h"
#include "runtime/comm/communicator.h"

namespace ananke::cuda {

class PeerExchange {
 public:
  struct Setup {
    int rank = 0, size = 1;  // within the communicator
    int row_blocks = 8;      // thread blocks of an exchange of rows: SMs
    int sum_blocks = 24;     // of a sum
  };
  static constexpr const char* purpose = "exchange between GPUs";
  static constexpr std::size_t device_bytes = sizeof(PeerBoard);
  static constexpr std::size_t host_bytes = sizeof(int);

  // `device` outlives it.
  PeerExchange(Setup setup, CudaDevice& device);
  // After stop(), or when the work is done.
  ~PeerExchange();
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;

  // Collective. Why the memory cannot be shared, the same on all ranks, or empty.
  std::string share(const TensorView& memory, const TellAll& tell);
  // Arguments are checked (comm/collective_checks.h). Error(internal) where a kernel found a call wrong before.
  void all_to_all_rows(cudaStream_t stream, const RowExchange& a);
  void sum_parts(cudaStream_t stream, const TensorView& parts, const TensorView& sum, bool add);
  // Kernels that wait for another rank end soon, their results being worth nothing. Any thread.
  void stop() noexcept;

 private:
  PeerCall next_call();
  struct Place {
    int piece;
    long long offset;
  };
  Place place_of(const TensorView& memory) const;

  const Setup setup_;
  CudaDevice& device_;
  Buffer board_, stopped_;
  const Faults faults_;
  PeerMemory memory_;
  bool board_shared_ = false;
  unsigned long long calls_ = 0;
};

}  // namespace ananke::cuda
