// What rows cost, step by step: how much longer the rank with the dearest rows works than the mean of all, which is
// what the others wait for.
//
// The cost of a row: the sum of its squared segment lengths (attention, causal within a segment) + break_even x the
// row's length (everything else, which every position costs alike). break_even is the length of a document at which
// its attention costs as much as the rest of the model does for it; 0: attention alone.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/document_pieces.h"

namespace ananke {

class StepCosts {
 public:
  // Row j of a step is rank j % ranks's; rows_per_step is a multiple of ranks.
  StepCosts(std::int64_t rows_per_step, std::int64_t ranks, double row_length, double break_even = 0);
  void add_row(std::uint64_t squares);

  struct Spread {
    std::uint64_t steps = 0;                            // whole ones
    double mean = 0, median = 0, p99 = 0, largest = 0;  // of a step's worst rank / mean of its ranks
    // Of a step's cost with its number, Pearson: far from 0, the data would change its nature during the run.
    double correlation = 0;
  };
  Spread spread() const;

 private:
  std::size_t rows_per_step_;
  double constant_;
  std::vector<double> ranks_;  // of the step that is being added to
  std::size_t rows_ = 0;
  std::vector<double> worst_;  // over mean, of each step
  std::vector<double> means_;
};

// Documents one after another, cut where a row ends (as the built-in batches do): their rows' squares, in order.
class SequentialRows {
 public:
  explicit SequentialRows(std::uint32_t row_length) : row_length_(row_length), room_(row_length) {}
  // Calls each(squares) for every row that the piece fills.
  template <class Each>
  void add(const Piece& piece, Each each) {
    std::uint64_t left = piece.count;
    if (piece.source != last_.source || piece.document != last_.document || piece.begin != last_.begin + last_.count) {
      end_segment();
    }
    last_ = piece;
    while (left > 0) {
      const std::uint64_t now = left < room_ ? left : room_;
      segment_ += now;
      left -= now;
      room_ -= now;
      if (room_ > 0) continue;
      end_segment();
      each(squares_);
      squares_ = 0;
      room_ = row_length_;
    }
  }

 private:
  void end_segment() {
    squares_ += segment_ * segment_;
    segment_ = 0;
  }
  std::uint64_t row_length_, room_;
  std::uint64_t segment_ = 0, squares_ = 0;
  Piece last_;
};

}  // namespace ananke
