// How the directions of whole matrices are made in a step: which rank transforms which matrix, in which round, and what
// travels for it. Pure: every rank computes the same from the same lists, and hash() is compared at start.
//
// A matrix that lies whole on one rank (an expert, mostly) is resident: that rank transforms it, nothing travels. Every
// other one travels: its parts go to one owner and the direction's parts come back. Owners are chosen longest first
// (LPT: the next matrix to the rank with the least load), ties by size then name; loads start with what is resident and
// accumulate over the rounds. A round holds at most `bucket_bytes` per rank, or `resident_bytes`, and at least one
// matrix, so that buffers are bounded.
//
// Replicas hold equal state. Each transforms everything, or, with `share_replicas`, a part of every round that is then
// broadcast to the others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/placement.h"
#include "runtime/comm/redistribution.h"
#include "runtime/roles/optimizer.h"

namespace ananke {

using OptimizerMap = std::map<std::string, std::unique_ptr<Optimizer>>;  // by plugin name

struct MatrixWorkOptions {
  int replicas = 1, replica = 0;             // of the mesh, and this rank's
  int rank = 0;                              // on the shard axis
  std::uint64_t bucket_bytes = 64 << 20;     // of a round that travels
  std::uint64_t resident_bytes = 512 << 20;  // of one that does not
  bool share_replicas = false;
};

// One rank's part of one matrix: what prepare() writes and apply() takes, `offset` elements from the beginning of the
// round's buffer (the matrices' buffer where the round is resident, else the transfer's).
struct MatrixPart {
  std::size_t fragment = 0;  // of this rank's fragments
  std::int64_t begin = 0;    // within the fragment
  std::int64_t count = 0;
  std::int64_t offset = 0;
};

// Matrices of one shape that this rank transforms together, `offset` elements from the beginning of the matrices'
// buffer.
struct MatrixGroup {
  Optimizer* optimizer = nullptr;
  std::int64_t count = 0, rows = 0, columns = 0;
  std::int64_t offset = 0;
};

struct ElementRange {
  std::int64_t begin = 0, count = 0;
};

// From a received piece to its place among the matrices, and back.
struct MatrixCopy {
  std::int64_t received = 0, matrices = 0, count = 0;
};

struct MatrixRound {
  std::vector<MatrixPart> parts;
  std::vector<MatrixGroup> groups;
  std::int64_t matrices = 0;            // elements of the matrices' buffer
  std::vector<ElementRange> broadcast;  // where replicas share: what each makes, of the buffer that the parts are in
  // Rounds that travel:
  Redistribution exchange;  // of this replica's matrices
  ElementRange sent;        // this replica's elements of the transfer buffer
  std::vector<MatrixCopy> copies;
  std::int64_t transfer = 0;  // elements of the transfer buffer
};

class MatrixWork {
 public:
  // chosen: the optimizer's name per parameter; fragments: what every rank of the shard axis owns, in its order.
  // Throws Error(config) where an optimizer refuses a parameter.
  MatrixWork(const ParameterTable& table, const std::vector<std::string>& chosen, const OptimizerMap& optimizers,
             std::span<const std::vector<Fragment>> fragments, const MatrixWorkOptions& options);

  const std::vector<MatrixRound>& travelling() const noexcept { return travelling_; }
  const std::vector<MatrixRound>& resident() const noexcept { return resident_; }
  // The same on every rank: owners and rounds of all matrices.
  const std::string& hash() const noexcept { return hash_; }

  // For people and tests: every matrix, in table order.
  struct Assignment {
    int parameter = 0;
    std::int64_t begin = 0, rows = 0, columns = 0;
    double cost = 0;
    bool travels = false;
    int round = 0;    // among those that travel, or those of its owner's residents
    int replica = 0;  // 0 where all replicas do the same
    int rank = 0;     // on the shard axis
  };
  const std::vector<Assignment>& assignments() const noexcept { return assignments_; }

 private:
  std::vector<Assignment> assignments_;
  std::vector<MatrixRound> travelling_, resident_;
  std::string hash_;
};

}  // namespace ananke
