// Collectives by NCCL.
//
// Bits: without in-switch sums (BackendCuda.nvlink_sharp) NCCL adds along rings and trees that it lays out from the
// nodes' topology, and chooses among them by the size of a call and its own model of the machine; it has no float
// atomics. So a sum is the same bits in every run on the same ranks, the same kind of nodes, NCCL version, CTA limits
// and NCCL_* settings, and all_reduce gives the same bits on every rank; the order of the ranks in a sum is NCCL's and
// differs from block to block.
//
// The communicator is non-blocking: no call into NCCL waits for a peer, so the deadlines below hold. A peer that is
// gone is noticed by NCCL (another host's), by its process or its Presence (this host's), or by the deadline; then the
// communicator is aborted, which ends its kernels, and whoever waits for a stream of the device throws.
//
// On one node ranks share memory; then rows and sums of bf16 go straight from GPU to GPU (peer_exchange.h), and the
// same deadlines hold.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/backend_cuda/collective_watch.h"
#include "plugins/backend_cuda/cuda_device.h"
#include "plugins/backend_cuda/peer_exchange.h"
#include "plugins/backend_cuda/peers.h"
#include "runtime/comm/collective_checks.h"
#include "runtime/comm/communicator.h"

namespace ananke::cuda {

class NcclCommunicator final : public Communicator, private Watched {
 public:
  struct Setup {
    std::string name;
    std::vector<int> ranks;          // world ranks
    int rank = 0;                    // own, within the group
    int min_ctas = 0, max_ctas = 0;  // 0: NCCL's choice
    std::chrono::milliseconds connect_deadline{60000};
    std::chrono::milliseconds step_deadline{600000};  // of one collective, from when the one before it is done
    std::chrono::milliseconds farewell{1000};         // from a peer's end until what it takes part in counts as lost
    bool share = true;                                // memory, where GPUs reach each other's
    int row_blocks = 8, sum_blocks = 24;              // as PeerExchange::Setup
  };
  // All ranks come here with the same `peers`; null where there is one rank, whose collectives are copies. Blocks until
  // all are connected. Errors: worker_failed (a peer is gone, or NCCL says so), stalled (the deadline).
  NcclCommunicator(Setup setup, std::unique_ptr<Peers> peers, CudaDevice& device, CollectiveWatch& watch);
  ~NcclCommunicator() override;

  int rank() const override { return setup_.rank; }
  int size() const override { return static_cast<int>(setup_.ranks.size()); }
  void all_gather(Stream& stream, const TensorView& send, const TensorView& receive) override;
  void reduce_scatter(Stream& stream, const TensorView& send, const TensorView& receive) override;
  void all_reduce(Stream& stream, const TensorView& buffer, Reduction reduction) override;
  void broadcast(Stream& stream, const TensorView& buffer, int root) override;
  void all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> send_counts,
                  const TensorView& receive, std::span<const std::int64_t> receive_counts) override;
  bool share(Stream& stream, const TensorView& memory) override;
  void all_to_all_rows(Stream& stream, const RowExchange& a) override;
  void sum_parts(Stream& stream, const TensorView& parts, const TensorView& sum, bool add) override;
  void abort() noexcept override;

 private:
  using Lock = std::unique_lock<std::timed_mutex>;
  struct Flight {
    cudaEvent_t end = nullptr;
    const char* what = "";
    std::uint64_t number = 0;  // from 1
    bool recorded = false;     // `end` is on the stream
  };

  void connect();
  std::vector<std::string> tell(Stream& stream, const std::string& own);
  PeerExchange& exchange();
  template <class Call>
  void issue(CudaStream& stream, const char* what, Call call);
  void wait_until_issued(Lock& lock, ncclResult_t result, const char* what, std::chrono::milliseconds deadline);
  void track(cudaStream_t stream, const char* what);
  void reap();
  void look(WatchClock::time_point now) noexcept override;
  void give_up(ErrorKind kind, const std::string& what, const std::string& reason) noexcept;
  void abort_nccl() noexcept;
  void say_goodbye() noexcept;
  void close_exchange() noexcept;
  bool idle();
  void refuse_if_closed(const char* what) const;
  std::string context(const std::string& what) const;

  const Setup setup_;
  CollectiveChecks checks_;
  const std::unique_ptr<Peers> peers_;
  CudaDevice& device_;
  CollectiveWatch& watch_;

  std::mutex exchange_mutex_;               // while it is made and ended, and where the watch uses it
  std::unique_ptr<PeerExchange> exchange_;  // from the first share() on

  std::timed_mutex nccl_mutex_;  // held during a call into NCCL
  ncclComm_t nccl_ = nullptr;
  std::atomic<bool> closed_ = false;   // no more calls
  std::atomic<bool> aborted_ = false;  // nccl_ is gone
  std::atomic<const char*> issuing_ = nullptr;

  std::mutex flights_mutex_;
  std::deque<Flight> flights_;  // not yet seen at their end
  std::vector<cudaEvent_t> spare_;
  std::vector<cudaEvent_t> events_;  // all
  std::uint64_t begun_ = 0;
  Patience patience_;
};

}  // namespace ananke::cuda
