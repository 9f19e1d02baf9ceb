#include "runtime/data/sequential_batches.h"

#include <algorithm>
#include <sstream>

#include "ananke/job.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

RandomKey order_key(std::uint64_t seed, std::uint64_t epoch) {
  return RandomKey(seed, fmt::format("documents/epoch {}", epoch));
}

constexpr const char* position_format = "sequential-1";

}  // namespace

SequentialBatches::SequentialBatches(std::unique_ptr<DocumentSource> source, const SequentialOptions& options)
    : source_(std::move(source)), options_(options), order_(order_key(options.seed, 0)) {
  ANANKE_CHECK(options.row_length > 0 && options.rank >= 0 && options.rank < options.ranks,
               "rows of {} for rank {} of {}", options.row_length, options.rank, options.ranks);
  targets_ = source_->targets();
  if (targets_ == 0) {
    fail(ErrorKind::data, "{} has {} documents, none of two tokens or more: there is nothing to predict in it",
         source_->name(), source_->documents());
  }
}

std::uint64_t SequentialBatches::document_at(const RandomKey& order, std::uint64_t index) const noexcept {
  return options_.endless ? permuted(order, source_->documents(), index) : index;
}

std::uint64_t SequentialBatches::inputs_of(std::uint64_t document) const {
  const std::uint64_t length = source_->length(document);
  return length > 0 ? length - 1 : 0;
}

bool SequentialBatches::seek() {
  const std::uint64_t count = source_->documents();
  for (;; ++place_.index) {
    if (place_.index == count) {
      if (!options_.endless) return false;
      order_ = order_key(options_.seed, ++place_.epoch);
      place_.index = 0;
    }
    document_ = document_at(order_, place_.index);
    inputs_ = inputs_of(document_);
    if (place_.offset < inputs_) return true;
  }
}

bool SequentialBatches::deal(Rows* out) {
  if (options_.most_rows > 0 && place_.rows >= static_cast<std::uint64_t>(options_.most_rows)) return false;
  if (!seek()) return false;
  const auto length = static_cast<std::size_t>(options_.row_length);
  std::size_t base = 0;
  if (out) {
    base = out->tokens.size();
    out->tokens.resize(base + length, 0);
    out->targets.resize(base + length, -1);
    out->positions.resize(base + length);
    out->segments.emplace_back();
    ++out->rows;
  }
  const auto begin_segment = [&](std::size_t at, std::size_t count) {
    out->segments.back().push_back(static_cast<std::int32_t>(at));
    for (std::size_t i = 0; i < count; ++i) out->positions[base + at + i] = static_cast<std::int32_t>(i);
  };
  std::size_t at = 0;
  while (at < length && seek()) {
    const auto take = static_cast<std::size_t>(std::min<std::uint64_t>(length - at, inputs_ - place_.offset));
    if (out) {
      scratch_.resize(take + 1);
      source_->read(document_, place_.offset, scratch_);
      std::copy_n(scratch_.begin(), take, out->tokens.begin() + static_cast<std::ptrdiff_t>(base + at));
      std::copy_n(scratch_.begin() + 1, take, out->targets.begin() + static_cast<std::ptrdiff_t>(base + at));
      begin_segment(at, take);
      out->valid_targets += static_cast<std::int64_t>(take);
    }
    at += take;
    place_.offset += take;
    if (place_.offset == inputs_) {
      ++place_.index;
      place_.offset = 0;
    }
  }
  if (out && at < length) begin_segment(at, length - at);
  ++place_.rows;
  return true;
}

bool SequentialBatches::next(std::int64_t count, Rows& out) {
  out = Rows{};
  out.row_length = options_.row_length;
  bool any = false;
  for (std::int64_t row = 0; row < count; ++row) {
    if (!deal(row % options_.ranks == options_.rank ? &out : nullptr)) break;
    any = true;
  }
  return any;
}

// What the documents and their order are a function of.
std::string SequentialBatches::identity() const {
  return options_.endless ? fmt::format("{}/seed:{}", source_->identity(), options_.seed)
                          : source_->identity() + "/in-order";
}

std::string SequentialBatches::position() const {
  return fmt::format("{} {} {} {} {} {}", position_format, identity(), place_.epoch, place_.index, place_.offset,
                     place_.rows);
}

void SequentialBatches::restore(const std::string& position) {
  std::istringstream text(position);
  std::string format, whose, rest;
  Place place;
  text >> format >> whose >> place.epoch >> place.index >> place.offset >> place.rows;
  if (!text || format != position_format || (text >> rest)) {
    fail(ErrorKind::checkpoint, "the checkpoint's position in the data is not one of the built-in batches: '{:.80}'",
         position);
  }
  if (whose != identity()) {
    fail(ErrorKind::checkpoint,
         "the checkpoint's position belongs to other data: it is of {}, but {} is {}; train on the same documents with "
         "the same seed, or begin a new run",
         whose, source_->name(), identity());
  }
  const RandomKey order = order_key(options_.seed, place.epoch);
  const std::uint64_t count = source_->documents();
  const bool inside = place.index < count && place.offset < inputs_of(document_at(order, place.index));
  if (!inside && !(place.index <= count && place.offset == 0)) {
    fail(ErrorKind::checkpoint, "the checkpoint's position in {} (document {} of {}, token {}) does not exist",
         source_->name(), place.index, count, place.offset);
  }
  order_ = order;
  place_ = place;
}

namespace {

SequentialOptions options_of(const Job& job, int rank, int ranks) {
  SequentialOptions options;
  options.row_length = job.training().sequence_length();
  options.seed = job.training().seed();
  options.rank = rank;
  options.ranks = ranks;
  return options;
}

}  // namespace

std::unique_ptr<Batches> training_batches(const Job& job, int rank, int ranks) {
  return std::make_unique<SequentialBatches>(training_documents(job), options_of(job, rank, ranks));
}

std::vector<HeldOutBatches> held_out_batches(const Job& job, int rank, int ranks) {
  std::vector<HeldOutBatches> sets;
  for (const HeldOut& set : job.evaluation().held_out()) {
    SequentialOptions options = options_of(job, rank, ranks);
    options.endless = false;
    options.most_rows = set.rows();
    sets.push_back({set.name(), std::make_unique<SequentialBatches>(held_out_documents(job, set), options)});
  }
  return sets;
}

}  // namespace ananke
