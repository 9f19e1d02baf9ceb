// Transport between processes of one host through shared memory: each rank copies what it sends into a file of its own,
// which the others read where it is. One meeting (a futex) per exchange.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/backend_host/shared_memory.h"
#include "plugins/backend_host/transport.h"

namespace ananke {

class SharedGroup {
 public:
  // `ranks`: world ranks in the group's order, for messages; `rank`: own, within the group. Error(resource) where the
  // system has no shared memory. `deadline` bounds every wait for the others.
  // `taken` is added to by what this rank's outboxes grow to; it may be null.
  SharedGroup(std::vector<int> ranks, int rank, std::chrono::milliseconds deadline,
              std::shared_ptr<std::atomic<std::uint64_t>> taken = nullptr);
  ~SharedGroup();
  std::string address() const;  // for the others; good while this object lives
  // `addresses`: of all ranks, in order. Error(resource) saying why they cannot share memory. The group must live until
  // all have joined.
  std::unique_ptr<Transport> join(const std::vector<std::string>& addresses);

 private:
  const std::vector<int> ranks_;
  const int rank_;
  const std::chrono::milliseconds deadline_;
  const std::shared_ptr<std::atomic<std::uint64_t>> taken_;
  FileDescriptor file_;
};

}  // namespace ananke
