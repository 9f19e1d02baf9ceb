// Batches plugin: rows in the order of runtime/data/packed_order.h. Every rank packs all rows, from document lengths
// alone, and reads the tokens of its own.
#include <algorithm>

#include "ananke/job.pb.h"
#include "plugins/packing/packing.pb.h"
#include "runtime/data/packed_order.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/batches.h"

namespace ananke {
namespace {

std::vector<PackingSource> sources_of(const Job& job, const plugin::Packing& config) {
  std::vector<PackingSource> sources;
  sources.push_back({training_documents(job), config.weight()});
  for (const plugin::Packing::Store& store : config.mix()) {
    sources.push_back({open_token_store(store.tokens(), job.model().vocab_size()), store.weight()});
  }
  return sources;
}

PackingOptions options_of(const Job& job, const plugin::Packing& config) {
  PackingOptions options;
  options.row_length = job.training().sequence_length();
  options.rows_per_step = job.training().rows_per_step();
  options.window_steps = config.window_steps();
  options.open_rows = config.open_rows();
  options.seed = job.training().seed();
  return options;
}

class PackingBatches final : public Batches {
 public:
  PackingBatches(const RoleContext& context, const plugin::Packing& config)
      : order_(sources_of(context.job, config), options_of(context.job, config)),
        rank_(context.rank),
        ranks_(context.mesh.ranks()) {}

  bool next(std::int64_t count, Rows& out) override {
    out = Rows{};
    out.row_length = order_.row_length();
    for (std::int64_t row = 0; row < count; ++row) {
      const PackedRow& packed = order_.next();
      if (row % ranks_ == rank_) append(packed, out);
    }
    return true;
  }

  std::string position() const override { return order_.position(); }
  void restore(const std::string& position) override { order_.restore(position); }

 private:
  void append(const PackedRow& row, Rows& out) {
    const auto length = static_cast<std::size_t>(order_.row_length());
    const std::size_t end = out.tokens.size() + length;
    std::vector<std::int32_t>& begins = out.segments.emplace_back();
    std::int32_t begin = 0;
    const auto segment = [&](std::size_t count) {
      begins.push_back(begin);
      begin += static_cast<std::int32_t>(count);
      for (std::size_t i = 0; i < count; ++i) out.positions.push_back(static_cast<std::int32_t>(i));
    };
    for (const Piece& piece : row.pieces) {
      // One token more than inputs: the last input's target.
      tokens_.resize(std::size_t{piece.count} + 1);
      order_.source(piece.source).read(piece.document, piece.begin, tokens_);
      out.tokens.insert(out.tokens.end(), tokens_.begin(), tokens_.end() - 1);
      out.targets.insert(out.targets.end(), tokens_.begin() + 1, tokens_.end());
      segment(piece.count);
    }
    out.valid_targets += row.used;
    if (row.used < length) segment(length - row.used);
    out.tokens.resize(end, 0);
    out.targets.resize(end, -1);
    ++out.rows;
  }

  PackedOrder order_;
  int rank_, ranks_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace

ANANKE_PLUGIN(Batches, PackingBatches, plugin::Packing);

}  // namespace ananke
