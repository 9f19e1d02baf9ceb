// The collectives themselves: blocking, on the calling thread, sizes already checked, two ranks or more.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/backend_host/transport.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/arena.h"

namespace ananke {

class Collectives {
 public:
  // Every rank gets everything and reduces all of it; else each reduces one block, and all gather the blocks.
  static bool reduces_at_once(std::size_t bytes, int ranks);
  Collectives(Transport& transport, int rank, int size, Arena& memory);

  void all_gather(const TensorView& send, const TensorView& receive);
  void reduce_scatter(const TensorView& send, const TensorView& receive);
  void all_reduce(const TensorView& buffer, Reduction reduction);
  void broadcast(const TensorView& buffer, int root);
  // Byte counts by rank.
  void all_to_all(const TensorView& send, const std::vector<std::size_t>& send_bytes, const TensorView& receive,
                  const std::vector<std::size_t>& receive_bytes);
  // Error(internal) where counts are not what the contract says.
  void all_to_all_rows(const RowExchange& a);
  void sum_parts(const TensorView& parts, const TensorView& sum, bool add);

 private:
  void clear();
  void exchange() { transport_.exchange(sends_, receives_); }
  void reduce_arrived(DType dtype, Reduction reduction, const void* own, void* out, std::int64_t count);
  void all_reduce_at_once(const TensorView& buffer, Reduction reduction);
  void all_reduce_in_blocks(const TensorView& buffer, Reduction reduction);
  void* scratch(std::size_t bytes);

  Transport& transport_;
  const int rank_, size_;
  Arena& memory_;
  Buffer scratch_;
  std::vector<Part> sends_, receives_;
  std::vector<const void*> terms_;
};

}  // namespace ananke
