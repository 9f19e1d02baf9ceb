// The order in which packing deals rows: windows of whole steps, in each of which rows of like cost come together.
//
// A window is `window_steps` steps of rows. Documents are drawn from the sources (mixed_pieces.h) and packed into
// exactly that many rows (row_packer.h); the document that fits nowhere any more is the next window's first. The rows
// are sorted by attention cost and cut into steps, and the steps are permuted by the seed: a step's rows cost alike,
// and its cost says nothing of its place in the run. Within a step rows stand by cost, rising or falling by the seed's
// choice, so that neighbours, which different ranks compute at the same time, are the most alike.
//
// What the window bounds: the ratio of dearest to cheapest row of the window is shared out over its steps, so that the
// mean over steps of worst / mean falls towards 1 as 1 / window_steps. In memory: the pieces of one window (24 bytes
// each) and a group of documents of each source.
//
// A window spans no more than one epoch of any source (but a whole step always), and no more than about 4 Mi pieces.
//
// Everything is a function of (sources, seed, row length, rows a step, window), not of the mesh. A position is where
// the window began in each source, and how many of its rows were dealt: to go on, the window is packed again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/mixed_pieces.h"
#include "runtime/data/row_packer.h"

namespace ananke {

constexpr std::int64_t most_step_rows = std::int64_t{1} << 24;

struct PackingOptions {
  std::int64_t row_length = 0;
  std::int64_t rows_per_step = 0;  // at most most_step_rows
  std::uint64_t window_steps = 64;
  std::size_t open_rows = 128;
  std::uint64_t seed = 0;
};

class PackedOrder {
 public:
  // Throws what MixedPieces does, and Error(config) for more rows a step than that.
  PackedOrder(std::vector<PackingSource> sources, const PackingOptions& options);

  // Packs a window where the last one is used up. The row holds until the next call.
  const PackedRow& next();
  std::uint32_t row_length() const noexcept { return row_length_; }
  // As asked for, or fewer where the sources are small.
  std::uint64_t window_steps() const noexcept { return window_steps_; }
  const DocumentSource& source(std::uint32_t number) const noexcept { return *pieces_.sources()[number].documents; }
  // The epoch that a source is in where the window ends.
  std::uint64_t epoch(std::uint32_t number) const { return pieces_.places()[number].at.epoch; }

  std::string position() const;
  // Throws Error(checkpoint), and changes nothing then.
  void restore(const std::string& position);

 private:
  std::uint64_t steps_of_a_window(const PackingOptions& options) const;
  void pack();
  void arrange();

  std::uint64_t seed_;
  std::uint32_t row_length_;
  std::size_t rows_per_step_, open_rows_;
  MixedPieces pieces_;  // behind the window, or at its start while it is not packed
  std::uint64_t window_steps_ = 1;
  std::string identity_;

  std::uint64_t window_ = 0;
  std::vector<MixedPieces::Place> start_;  // of the window
  std::uint64_t dealt_ = 0;                // rows of the window
  std::vector<PackedRow> rows_;            // empty: to be packed
  std::vector<std::uint32_t> order_;
};

}  // namespace ananke
