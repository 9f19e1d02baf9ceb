#include "runtime/data/packed_order.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace ananke {
namespace {

constexpr const char* position_format = "packing-1";
constexpr double most_pieces = 4 << 20;  // of a window, about

}  // namespace

PackedOrder::PackedOrder(std::vector<PackingSource> sources, const PackingOptions& options)
    : seed_(options.seed),
      row_length_(static_cast<std::uint32_t>(options.row_length)),
      rows_per_step_(static_cast<std::size_t>(options.rows_per_step)),
      open_rows_(options.open_rows),
      pieces_(std::move(sources), seed_, row_length_),
      window_steps_(steps_of_a_window(options)),
      start_(pieces_.places()) {
  if (options.rows_per_step > most_step_rows) {
    fail(ErrorKind::config,
         "packing holds the rows of a whole step at once: {} of them are more than the {} that it can hold; take fewer "
         "rows a step",
         options.rows_per_step, most_step_rows);
  }
  std::string whose = fmt::format("{} {} {} {} {}", seed_, row_length_, rows_per_step_, window_steps_, open_rows_);
  for (const PackingSource& source : pieces_.sources()) {
    whose += fmt::format("\n{} {}", source.documents->identity(), source.weight);
  }
  identity_ = hash_hex(whose);
}

std::uint64_t PackedOrder::steps_of_a_window(const PackingOptions& options) const {
  ANANKE_CHECK(options.row_length > 0 && options.row_length < (std::int64_t{1} << 31) && options.rows_per_step > 0 &&
                   options.window_steps > 0 && options.open_rows > 0,
               "rows of {}, {} a step, {} steps a window, {} rows open", options.row_length, options.rows_per_step,
               options.window_steps, options.open_rows);
  const double step_inputs = static_cast<double>(rows_per_step_) * static_cast<double>(row_length_);
  double steps = static_cast<double>(options.window_steps);
  double pieces_per_input = 1 / static_cast<double>(row_length_);  // of splitting; and one of each document
  for (std::size_t i = 0; i < pieces_.sources().size(); ++i) {
    const DocumentSource& documents = *pieces_.sources()[i].documents;
    const double share = pieces_.share(i), targets = static_cast<double>(documents.targets());
    steps = std::min(steps, targets / share / step_inputs);
    pieces_per_input += share * static_cast<double>(documents.documents()) / targets;
  }
  steps = std::min(steps, most_pieces / (step_inputs * pieces_per_input));
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(steps));
}

void PackedOrder::pack() {
  RowPacker packer(row_length_, window_steps_ * rows_per_step_, open_rows_);
  while (packer.add(pieces_.current())) pieces_.advance();
  rows_ = packer.take();
  arrange();
}

void PackedOrder::arrange() {
  std::vector<std::uint64_t> costs;
  for (const PackedRow& row : rows_) costs.push_back(row.squares(row_length_));
  std::vector<std::uint32_t> by_cost(rows_.size());
  std::iota(by_cost.begin(), by_cost.end(), 0);
  std::stable_sort(by_cost.begin(), by_cost.end(), [&](auto a, auto b) { return costs[a] < costs[b]; });
  const RandomKey step_order(seed_, fmt::format("packing/window {}/steps", window_));
  const RandomKey direction(seed_, fmt::format("packing/window {}/directions", window_));
  order_.clear();
  for (std::uint64_t step = 0; step < window_steps_; ++step) {
    const auto begin =
        by_cost.begin() + static_cast<std::ptrdiff_t>(permuted(step_order, window_steps_, step) * rows_per_step_);
    order_.insert(order_.end(), begin, begin + static_cast<std::ptrdiff_t>(rows_per_step_));
    if (direction.bits(step) & 1)
      std::reverse(order_.end() - static_cast<std::ptrdiff_t>(rows_per_step_), order_.end());
  }
}

const PackedRow& PackedOrder::next() {
  if (rows_.empty()) pack();
  if (dealt_ == rows_.size()) {
    start_ = pieces_.places();
    ++window_;
    dealt_ = 0;
    pack();
  }
  return rows_[order_[dealt_++]];
}

std::string PackedOrder::position() const {
  std::string text = fmt::format("{} {} {} {}", position_format, identity_, window_, dealt_);
  for (const auto& [at, drawn] : start_) {
    text += fmt::format(" {} {} {} {} {}", at.epoch, at.group, at.index, at.offset, drawn);
  }
  return text;
}

void PackedOrder::restore(const std::string& position) {
  std::istringstream text(position);
  std::string format, whose, rest;
  std::uint64_t window = 0, dealt = 0;
  text >> format >> whose >> window >> dealt;
  if (!text || format != position_format) {
    fail(ErrorKind::checkpoint,
         "the checkpoint's position in the data is not one of packing: '{:.80}'; resume with "
         "the plugin of role batches that wrote it",
         position);
  }
  if (whose != identity_) {
    fail(
        ErrorKind::checkpoint,
        "the checkpoint's position belongs to other data: packing of {} and its settings is {}, the position is of {}; "
        "train on the same documents with the same seed, rows, window and weights, or begin a new run",
        source(0).name(), identity_, whose);
  }
  std::vector<MixedPieces::Place> start(start_.size());
  for (auto& [at, drawn] : start) text >> at.epoch >> at.group >> at.index >> at.offset >> drawn;
  const bool whole = !text.fail() && !(text >> rest);
  if (!whole || dealt > window_steps_ * rows_per_step_ || !pieces_.seek(start)) {
    fail(ErrorKind::checkpoint, "the checkpoint's position in {} does not exist: '{:.200}'; the checkpoint is damaged",
         source(0).name(), position);
  }
  start_ = std::move(start);
  window_ = window;
  dealt_ = dealt;
  rows_.clear();
}

}  // namespace ananke
