// Moves arrays between two ways of holding them: rank r holds parts before, other parts after. The plan is pure and is
// made by all ranks from the same lists; the exchange is one all-to-all with host counts, which also runs backwards.
//
// What a rank sends lies in a packed buffer by destination, then array, then position; what it receives by source, then
// array, then position. Whoever makes the elements can write them right there, so nothing is copied twice.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace ananke {

// Elements [begin, begin + count) of an array; count > 0.
struct ArrayPart {
  int array = 0;
  std::int64_t begin = 0, count = 0;
};

// Elements that go from one rank to another in one piece.
struct Route {
  int from = 0, to = 0;
  ArrayPart what;
};

// Every way that some element takes, by source, destination, array and position; what stays on its rank as well.
// `sizes`: elements of each array; before[r], after[r]: what rank r holds. Throws Error(internal) naming the array
// where a part reaches past its end, or where an element has no rank, or two, before or after.
std::vector<Route> plan_routes(std::span<const std::int64_t> sizes, std::span<const std::vector<ArrayPart>> before,
                               std::span<const std::vector<ArrayPart>> after);

// One rank's side of it.
class Redistribution {
 public:
  struct Piece {
    ArrayPart what;
    int peer = 0;             // destination of what is sent, source of what is received
    std::int64_t offset = 0;  // in the packed buffer
  };
  Redistribution() = default;  // of nothing, among nobody
  Redistribution(std::span<const Route> routes, int ranks, int rank);

  std::span<const Piece> sent() const noexcept { return sent_; }
  std::span<const Piece> received() const noexcept { return received_; }
  std::int64_t sent_elements() const noexcept { return sent_elements_; }
  std::int64_t received_elements() const noexcept { return received_elements_; }

  // `sent` to `received`, and back. f32, of at least the elements above; the communicator has the ranks of the plan.
  // Both return the bytes that this rank receives from others.
  std::uint64_t forward(Stream& stream, Communicator& ranks, const TensorView& sent, const TensorView& received) const;
  std::uint64_t backward(Stream& stream, Communicator& ranks, const TensorView& sent, const TensorView& received) const;

 private:
  std::vector<Piece> sent_, received_;
  std::vector<std::int64_t> send_counts_, receive_counts_;  // by rank
  std::int64_t sent_elements_ = 0, received_elements_ = 0;
};

}  // namespace ananke
