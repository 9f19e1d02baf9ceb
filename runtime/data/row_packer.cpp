#include "runtime/data/row_packer.h"

#include <algorithm>
#include <tuple>

#include "runtime/base/error.h"

namespace ananke {

std::uint64_t PackedRow::squares(std::uint32_t row_length) const noexcept {
  const std::uint64_t padding = row_length - used;
  std::uint64_t sum = padding * padding;
  for (const Piece& piece : pieces) sum += std::uint64_t{piece.count} * piece.count;
  return sum;
}

RowPacker::RowPacker(std::uint32_t row_length, std::size_t most_rows, std::size_t open_rows)
    : row_length_(row_length), most_rows_(most_rows), open_rows_(open_rows) {
  ANANKE_CHECK(row_length > 0 && most_rows > 0 && open_rows > 0, "{} rows of {}, {} of them open", most_rows,
               row_length, open_rows);
  rows_.reserve(most_rows);
}

bool RowPacker::put(const Piece& piece, std::uint32_t row_length, std::vector<PackedRow>& rows,
                    std::vector<Open>& open) {
  const auto found = std::lower_bound(open.begin(), open.end(), Open{piece.count, 0});
  if (found == open.end()) return false;
  const std::uint32_t row = found->row;
  rows[row].pieces.push_back(piece);
  rows[row].used += piece.count;
  const Open now{row_length - rows[row].used, row};
  // Its place among the rows with less room; those in between move up by one.
  const auto place = std::lower_bound(open.begin(), found, now);
  std::move_backward(place, found, found + 1);
  *place = now;
  if (now.room == 0) open.erase(place);
  return true;
}

void RowPacker::open_row() {
  if (open_.size() == open_rows_) open_.erase(open_.begin());  // the fullest
  open_.push_back({row_length_, static_cast<std::uint32_t>(rows_.size())});
  rows_.emplace_back();
}

// Best fit decreasing, into the same rows; only where it needs no more of them.
void RowPacker::lay_out_anew() {
  std::vector<Piece> pieces;
  for (const Open& open : open_) {
    const std::vector<Piece>& of_row = rows_[open.row].pieces;
    pieces.insert(pieces.end(), of_row.begin(), of_row.end());
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(b.count, a.source, a.document, a.begin) < std::tie(a.count, b.source, b.document, b.begin);
  });
  std::vector<PackedRow> rows;
  std::vector<Open> open;
  for (const Piece& piece : pieces) {
    if (put(piece, row_length_, rows, open)) continue;
    if (rows.size() == open_.size()) return;
    open.push_back({row_length_, static_cast<std::uint32_t>(rows.size())});
    rows.emplace_back();
    put(piece, row_length_, rows, open);
  }
  std::vector<std::uint32_t> places;
  for (const Open& was : open_) places.push_back(was.row);
  std::sort(places.begin(), places.end());
  while (rows.size() < places.size()) {
    open.push_back({row_length_, static_cast<std::uint32_t>(rows.size())});
    rows.emplace_back();
  }
  for (Open& is : open) is.row = places[is.row];
  for (std::size_t i = 0; i < places.size(); ++i) rows_[places[i]] = std::move(rows[i]);
  std::sort(open.begin(), open.end());
  open_ = std::move(open);
}

bool RowPacker::add(const Piece& piece) {
  ANANKE_CHECK(piece.count > 0 && piece.count <= row_length_, "a piece of {} inputs for rows of {}", piece.count,
               row_length_);
  if (put(piece, row_length_, rows_, open_)) return true;
  if (rows_.size() < most_rows_) {
    open_row();
  } else {
    lay_out_anew();
  }
  return put(piece, row_length_, rows_, open_);
}

}  // namespace ananke
