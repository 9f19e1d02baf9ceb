// What the contract of comm/communicator.h asks of the arguments of each call, for every backend: Error(internal)
// naming communicator, call and numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace ananke {

struct CollectiveChecks {
  std::string name;  // of the communicator
  int rank = 0;      // own, within it
  int size = 1;
  std::vector<TensorView> shared = {};  // pieces of memory, as they were given to share()

  void all_gather(const TensorView& send, const TensorView& receive) const;
  void reduce_scatter(const TensorView& send, const TensorView& receive) const;
  void all_reduce(const TensorView& buffer) const;
  void broadcast(int root) const;
  void all_to_all(const TensorView& send, std::span<const std::int64_t> send_counts, const TensorView& receive,
                  std::span<const std::int64_t> receive_counts) const;
  void all_to_all_rows(const RowExchange& a) const;
  void sum_parts(const TensorView& parts, const TensorView& sum) const;
  bool is_shared(const TensorView& memory) const;
};

}  // namespace ananke
