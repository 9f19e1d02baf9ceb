// Role "batches": the next rows. Built-in: sequential (documents in an order shuffled by seed, cut into rows).
//
// A document of n tokens gives n - 1 inputs and targets. Rows are cut from the stream of documents: one that is cut at
// a row's end goes on in the next row as a new segment (positions restart; the token at the cut is the last target
// before it and the first input after it, so no target is lost). The rows of a step are numbered globally; row g
// belongs to rank g % ranks, so the step's content does not depend on the mesh.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/roles/context.h"

namespace ananke {

// This rank's rows, flat: `rows` x `row_length` tokens. Host memory.
struct Rows {
  std::int64_t rows = 0;
  std::int64_t row_length = 0;
  std::vector<std::int32_t> tokens;     // inputs; padding is token 0
  std::vector<std::int32_t> targets;    // -1: none (padding)
  std::vector<std::int32_t> positions;  // within the segment, from 0
  // Per row: begins of its segments within the row, ascending from 0; padding at the end is a segment of its own.
  std::vector<std::vector<std::int32_t>> segments;
  std::int64_t valid_targets = 0;  // of this rank
};

class Batches {
 public:
  static constexpr const char* role = "batches";
  virtual ~Batches() = default;
  // This rank's part of the next `count` global rows. A training source never ends (a new epoch has another order). A
  // held-out source ends: rows past the end are left out, `out` may have 0 rows; returns false when no rank got any.
  virtual bool next(std::int64_t count, Rows& out) = 0;
  // Where the source stands, as bytes for a checkpoint; the same on every rank.
  virtual std::string position() const = 0;
  // Throws Error(checkpoint) when the position is not of this source.
  virtual void restore(const std::string& position) = 0;
};

}  // namespace ananke
