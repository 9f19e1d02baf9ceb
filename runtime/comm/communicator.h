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
  // Ends waiting calls with an error; callable from any thread, also while work is running.
  virtual void abort() noexcept = 0;
};

}  // namespace ananke
