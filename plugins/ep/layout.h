// Sizes of everything that ep keeps, and where it lies: pure functions of the role's sizes and the config.
#pragma once

#include <cstdint>

#include "runtime/operators/exchange.h"
#include "runtime/roles/experts.h"

namespace ananke::ep {

// Of one chunk.
struct Capacity {
  std::int64_t tokens;  // at the source
  std::int64_t sent;    // copies that leave a rank: a token has one for each rank with one of its experts
  std::int64_t copies;  // that arrive at this rank; 0 where it holds no expert
  std::int64_t rows;    // that they become
};
// Error(config) when a chunk's rows cannot be counted in 32 bits.
Capacity capacity_of(const ExpertSizes& s, int chunks);

// Device memory that start() allocates, in rows of the wire.
struct Buffers {
  WireRow token, plain, gradient;  // x with its routing; y or dy; dx with dweights
  std::int64_t send_out;           // bytes of each
  std::int64_t receive_tokens, receive_gradients;
  std::int64_t send_back, receive_back;
  // All of it: one send_out, and two of each other.
  std::size_t out() const { return static_cast<std::size_t>(send_out + 2 * (receive_tokens + receive_gradients)); }
  std::size_t back() const { return static_cast<std::size_t>(2 * (send_back + receive_back)); }
};
Buffers buffers_of(const ExpertSizes& s, int chunks, DType wire);

// Bytes of the largest all-to-all, as if a rank sent itself as much as every other one: at most all copies of a chunk
// leave, or as many come back.
std::uint64_t most_exchanged(const ExpertSizes& s, int chunks, DType wire);

// Per layer and microbatch.
struct LayerSaved {
  TensorView copies;  // i32 [tokens, ranks]
  TensorView counts;  // i32 [2, ranks, chunks]: copies that leave for each rank, copies that arrive from each
  TensorView leaving() const {
    return counts.slice(0, counts.elements() / 2).reshaped({counts.shape[1], counts.shape[2]});
  }
  TensorView arriving() const {
    const std::int64_t half = counts.elements() / 2;
    return counts.slice(half, half).reshaped({counts.shape[1], counts.shape[2]});
  }
};
std::size_t layer_saved_bytes(const ExpertSizes& s, int chunks);
LayerSaved layer_saved(const ExpertSizes& s, int chunks, Region region);

// Per chunk.
std::size_t chunk_saved_bytes(const ExpertSizes& s, int chunks);
Exchange::Copies chunk_saved(const ExpertSizes& s, int chunks, Region region);

}  // namespace ananke::ep
