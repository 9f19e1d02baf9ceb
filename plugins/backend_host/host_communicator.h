// The collectives, written once over a Transport. Sums and maxima go in rank order, so every rank and every transport
// gets the same bits.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "plugins/backend_host/transport.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/arena.h"

namespace ananke {

class HostCommunicator final : public Communicator {
 public:
  struct Setup {
    std::string name;
    std::vector<int> ranks;  // world ranks
    int rank = 0;            // own, within the group
    // Test option: sleeps this long inside each collective, to make what overlaps visible.
    std::chrono::milliseconds delay{0};
  };
  // `transport` may be null when there is one rank. Scratch comes from `memory`, grows to the largest call and stays.
  HostCommunicator(Setup setup, std::unique_ptr<Transport> transport, Arena& memory);
  // Work that is still on a stream ends with an error.
  ~HostCommunicator() override;

  int rank() const override;
  int size() const override;
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
  struct Core;  // shared with the work on the streams
  const std::shared_ptr<Core> core_;
};

}  // namespace ananke
