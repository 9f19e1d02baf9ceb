// What kernels find wrong in data that a call cannot see: ids, positions, offsets and counts lie on the device. A
// kernel that meets such a value leaves it out, so that nothing outside a tensor is touched, and writes a record; the
// host throws it when it next looks. The first record of a device stays: what comes later may follow from it.
#pragma once

#include <cstdint>

#include "runtime/device/arena.h"

namespace ananke::cuda {

enum class Fault : int {
  none = 0,
  embedding_token,       // token, position, rows of the table
  segment_ends,          // first, last, tokens
  segment_length,        // segment, begin, end, longest
  position,              // position, token, cached
  replayed_expert,       // expert, experts, token
  permuted_expert,       // expert, experts, slot
  target,                // target, vocabulary, token
  planned_expert,        // expert, experts, choice, token
  planned_expert_twice,  // token, expert
  copy_place,            // copy, rows of the wire
  arrived_copies,        // copies, capacity
  expanded_rows,         // rows, capacity
  count_of_copies,       // copies, capacity
  wire_piece,            // piece, count, columns, values, bytes
  group_rows,            // group, first row, end, rows
  rows_leave,            // rows up to those for a rank, rows there are, rank
  rows_arrive,           // rows, capacity, rank
  peer_call,             // rank, bytes of its call, another rank, bytes of that one's
};

struct FaultRecord {
  int fault;  // written last
  int padding;
  long long values[5];
};

// What a kernel is given, by value.
struct FaultSink {
  int* taken;           // device memory: 0 until the first one
  FaultRecord* record;  // pinned memory
};

class Faults {
 public:
  // Takes a few bytes of both arenas, whose pieces are filled with zeros.
  Faults(Arena& memory, Arena& pinned);
  FaultSink sink() const noexcept;
  bool any() const noexcept;  // of what has run
  // Throws Error(internal) where a kernel has written a record. To be called when a stream's work is done.
  void check() const;

 private:
  Buffer taken_, record_;
};

}  // namespace ananke::cuda
