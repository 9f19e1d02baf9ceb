// Collectives among the ranks of one mesh axis, made once by the backend and shared by everything that uses the axis.
//
// Every call only puts work on the stream. All ranks of the axis make the same calls in the same order from one host
// thread, whatever their data. Results are the same bits in every run with the same mesh. A peer that is lost makes the
// stream's work throw Error(worker_failed) (seen at synchronize), within the step deadline.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/tensor/tensor.h"

namespace ananke {

class Stream;

enum class Reduction { sum, max };

// Rows of a multiple of 16 bytes, at multiples of 16, exchanged among P ranks by counts that the device alone knows.
struct RowExchange {
  TensorView send;            // u8 [rows, bytes of a row]: those for rank 0, then those for rank 1, ...
  TensorView send_counts;     // i32 [P, n]: column `column` says how many are for each rank
  TensorView receive;         // u8 [capacity, bytes of a row], within shared memory: those of rank 0, of rank 1, ...
  TensorView receive_counts;  // i32 [P, n]: column `column` is set to how many came from each rank; empty: not wanted
  std::int64_t column = 0;
  TensorView received;  // i64 [1] in Device::host_memory(): grows by the bytes that came from others; empty: not wanted
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // within the axis
  virtual int size() const = 0;
  // receive = send of rank 0, send of rank 1, ...; receive has size() times send's elements. `send` may be its own
  // place inside `receive`. Any dtype.
  virtual void all_gather(Stream& stream, const TensorView& send, const TensorView& receive) = 0;
  // receive = sum over ranks of block rank() of send; send has size() times receive's elements and is left as it was.
  // f32 only. `receive` may not overlap `send`.
  virtual void reduce_scatter(Stream& stream, const TensorView& send, const TensorView& receive) = 0;
  // In place; the same bits on every rank. f32, f64, i64.
  virtual void all_reduce(Stream& stream, const TensorView& buffer, Reduction reduction) = 0;
  virtual void broadcast(Stream& stream, const TensorView& buffer, int root) = 0;
  // Row exchange: send holds send_counts[p] elements for each rank p, in rank order; likewise receive. Host counts; 0
  // is allowed. Any dtype.
  virtual void all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> send_counts,
                          const TensorView& receive, std::span<const std::int64_t> receive_counts) = 0;

  // Ranks that reach each other's memory need no counts on the host, and no memory between sender and receiver. Each
  // call of share() brings one piece of every rank's Device::memory(), of sizes of its own, within reach of the others,
  // until the communicator ends. Made at start by all ranks, as often and in the same order as on the others; it
  // blocks, with `stream` for what it sends itself. The same result on all ranks; false: the calls below cannot be
  // made, as where there is one rank.
  virtual bool share(Stream&, const TensorView&) { return false; }
  // As all_to_all(), in rows. Sums of counts are at most the rows of `send` and the capacity of the receiver; rows of
  // `receive` behind those that came are left as they were.
  virtual void all_to_all_rows(Stream& stream, const RowExchange& a);
  // sum = row rank() of every rank's `parts`, in rank order in f32 (Wire::landing_sum of what an all-to-all brings);
  // `add`: to what is in `sum`, after that. parts: bf16 [P, n], within shared memory; sum: f32 [n]; both at multiples
  // of 16 bytes.
  virtual void sum_parts(Stream& stream, const TensorView& parts, const TensorView& sum, bool add);
  // Ends waiting calls with an error; callable from any thread, also while work is running.
  virtual void abort() noexcept = 0;
};

}  // namespace ananke
