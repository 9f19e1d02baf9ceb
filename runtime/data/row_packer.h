// Whole documents into rows by best fit: a piece goes into the open row that it leaves the least room in.
//
// At most `open_rows` rows are open at a time; where a piece fits none of them, the fullest is closed and another
// opened. Once no more rows may be opened, the pieces of all open rows are laid out anew, longest first, which gathers
// the room that is left into few rows. So a window of rows ends with less than a row of padding or so, and what it
// loses on the way is what remained in the fullest of `open_rows` rows: little as soon as some documents are short.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/document_pieces.h"

namespace ananke {

struct PackedRow {
  std::vector<Piece> pieces;
  std::uint32_t used = 0;  // inputs; the rest of the row is padding
  // Sum of squared segment lengths, padding included since it is computed as a segment of its own: twice the number of
  // pairs that causal attention within segments looks at.
  std::uint64_t squares(std::uint32_t row_length) const noexcept;
};

class RowPacker {
 public:
  RowPacker(std::uint32_t row_length, std::size_t most_rows, std::size_t open_rows);
  // False: the piece fits nowhere and no row may be opened for it; nothing has changed but the layout of open rows.
  bool add(const Piece& piece);
  // All rows, in the order they were opened; fewer than most_rows only where less was added.
  std::vector<PackedRow> take() { return std::move(rows_); }

 private:
  struct Open {
    std::uint32_t room = 0;
    std::uint32_t row = 0;
    auto operator<=>(const Open&) const = default;
  };
  static bool put(const Piece& piece, std::uint32_t row_length, std::vector<PackedRow>& rows, std::vector<Open>& open);
  void open_row();
  void lay_out_anew();

  std::uint32_t row_length_;
  std::size_t most_rows_, open_rows_;
  std::vector<PackedRow> rows_;
  std::vector<Open> open_;  // ascending; full rows leave it
};

}  // namespace ananke
