// Collectives among threads of one process through host memory, whatever device their data is on. Every call ends when
// the result is there: nothing overlaps with it on its stream.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"

namespace ananke::testing {

// What the members of one communicator share.
class Hub {
 public:
  explicit Hub(int size) : shown_(static_cast<std::size_t>(size)) {}
  struct Shown {
    const std::byte* data = nullptr;
    std::vector<std::int64_t> counts;  // all_to_all: elements for each member
  };
  // Shows one's own to all, and returns when all have shown theirs.
  const std::vector<Shown>& show(int rank, Shown mine);
  // Returns when all have seen.
  void seen() { meet(); }
  void abort() noexcept;

 private:
  void meet();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Shown> shown_;
  std::size_t here_ = 0;
  std::uint64_t meetings_ = 0;
  bool aborted_ = false;
};

class SharingCommunicator final : public Communicator {
 public:
  SharingCommunicator(std::shared_ptr<Hub> hub, int rank, int size, Device& device)
      : hub_(std::move(hub)), rank_(rank), size_(size), device_(device) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_gather(Stream& stream, const TensorView& send, const TensorView& receive) override;
  void reduce_scatter(Stream& stream, const TensorView& send, const TensorView& receive) override;
  void all_reduce(Stream& stream, const TensorView& buffer, Reduction reduction) override;
  void broadcast(Stream& stream, const TensorView& buffer, int root) override;
  void all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> send_counts,
                  const TensorView& receive, std::span<const std::int64_t> receive_counts) override;
  bool share(Stream&, const TensorView&) override { return size_ > 1; }
  void all_to_all_rows(Stream& stream, const RowExchange& a) override;
  void sum_parts(Stream& stream, const TensorView& parts, const TensorView& sum, bool add) override;
  void abort() noexcept override { hub_->abort(); }

 private:
  const std::vector<Hub::Shown>& stage(Stream& stream, const TensorView& send, std::vector<std::int64_t> counts = {});
  std::vector<std::int32_t> column(Stream& stream, const TensorView& counts, std::int64_t column);
  // Copies `result_` to the device.
  void land(Stream& stream, const TensorView& receive);

  const std::shared_ptr<Hub> hub_;
  const int rank_, size_;
  Device& device_;
  std::vector<std::byte> mine_, result_;
};

}  // namespace ananke::testing
