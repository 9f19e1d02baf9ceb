// Transport between ranks that are threads of one process: each shows its peers what they may read.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/backend_host/transport.h"
#include "runtime/base/error.h"

namespace ananke {

// What the ranks of one group share. Made by one of them; every rank, the maker too, takes its seat exactly once
// (the group keeps itself alive until then).
class ThreadGroup {
 public:
  // `ranks`: world ranks in the group's order, for messages. `deadline` bounds every wait for the others.
  static ThreadGroup* create(std::vector<int> ranks, std::chrono::milliseconds deadline);
  void discard();  // nobody will take a seat
  std::unique_ptr<Transport> take_seat(int rank);

 private:
  friend class ThreadTransport;
  ThreadGroup(std::vector<int> ranks, std::chrono::milliseconds deadline);
  void show(int rank, std::span<const Part> sends);
  const Part& shown(int from, int to) const;
  void meet(int rank, bool reading_follows);
  std::vector<int> late() const;
  void stop_reading();
  void give_up(ErrorKind kind, std::string reason) noexcept;
  [[noreturn]] void leave();

  const std::vector<int> ranks_;
  const std::chrono::milliseconds deadline_;
  std::vector<std::shared_ptr<ThreadGroup>> seats_;
  std::vector<std::vector<Part>> shown_;  // by sender; written before a meeting, read after it
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> here_;
  int missing_ = 0;
  std::uint64_t meetings_ = 0;
  int reading_ = 0;  // ranks that may be reading what others show
  ErrorKind failure_kind_ = ErrorKind::worker_failed;
  std::string failure_;  // empty: none
};

}  // namespace ananke
