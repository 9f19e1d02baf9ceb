// Kernels that exchange between the memories of GPUs. All ranks launch the same kernels in the same order, each on one
// stream, with as many blocks; `call` counts them from 1. A call is done on a rank when what it receives is there and
// the others have taken what they take from it.
//
//   tell the others where and how much ─ wait for what they tell ─ move ─ tell that it is done ─ wait for all
//
// What the others tell lies in a rank's own Board and is never reset: it counts calls. Who waits looks at `stopped`,
// too, and ends when it is set.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "plugins/backend_cuda/operators/faults.h"

namespace ananke::cuda {

inline constexpr int most_peers = 16, most_peer_pieces = 8, most_peer_blocks = 64;

// What one rank tells another at the begin of a call.
struct PeerNote {
  unsigned long long call;  // written last
  long long bytes;          // of a row, or of a part of a sum, with the sign turned
  long long place;          // of `receive` or `parts` within its piece
  long long capacity;       // rows
  int piece;
  int counts[most_peers];  // rows for each rank
};
struct PeerBoard {  // in the memory of a rank, written by the others
  PeerNote notes[most_peers];
  unsigned long long done[most_peers][most_peer_blocks];  // calls
};

struct PeerCall {
  int rank, size;
  unsigned long long call;
  PeerBoard* boards[most_peers];  // by rank; the own one, too
  std::byte* pieces[most_peer_pieces][most_peers];
  const int* stopped;  // pinned memory
  FaultSink faults;
};

struct PeerRows {
  const std::byte* send;
  std::byte* receive;
  long long row;  // bytes, a multiple of 16
  long long send_rows, receive_rows;
  const int* send_counts;  // of rank p: [p * columns]
  long long send_columns;
  int* receive_counts;  // likewise; null: not wanted
  long long receive_columns;
  long long* received;  // pinned memory; null: not wanted
  int piece;            // that `receive` lies in
  long long place;
};
void exchange_rows(const PeerCall& call, const PeerRows& rows, int blocks, cudaStream_t stream);

struct PeerSum {
  const std::byte* parts;  // bf16 [ranks, count]
  float* sum;
  long long count;
  bool add;
  int piece;
  long long place;
};
void sum_parts(const PeerCall& call, const PeerSum& sum, int blocks, cudaStream_t stream);

}  // namespace ananke::cuda
