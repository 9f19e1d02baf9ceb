// Batches plugin @NAME@: one document a row, in the store's order. runtime/roles/batches.h is the contract.
#include <algorithm>
#include <sstream>

#include "@NAME@.pb.h"
#include "ananke/job.pb.h"
#include "runtime/data/document_source.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/batches.h"

namespace ananke {
namespace {

class @CLASS@Batches final : public Batches {
 public:
  @CLASS@Batches(const RoleContext& context, const plugin::@CLASS@& config)
      : source_(training_documents(context.job)),
        row_length_(context.job.training().sequence_length()),
        rank_(context.rank),
        ranks_(context.mesh.ranks()) {
    for (std::uint64_t document = 0; document < source_->documents(); ++document) {
      if (source_->length(document) >= config.shortest()) documents_.push_back(document);
    }
    if (documents_.empty()) {
      fail(ErrorKind::data, "none of the {} documents of {} has {} tokens; lower shortest", source_->documents(),
           source_->name(), config.shortest());
    }
  }

  bool next(std::int64_t count, Rows& out) override {
    out = Rows{};
    out.row_length = row_length_;
    for (std::int64_t row = 0; row < count; ++row, ++dealt_) {
      if (row % ranks_ == rank_) append(documents_[dealt_ % documents_.size()], out);
    }
    return true;
  }

  // The same on every rank: all count the global rows.
  std::string position() const override { return fmt::format("@NAME@ {} {}", source_->identity(), dealt_); }

  void restore(const std::string& position) override {
    std::istringstream text(position);
    std::string name, identity;
    std::uint64_t dealt = 0;
    if (!(text >> name >> identity >> dealt) || name != "@NAME@" || identity != source_->identity()) {
      fail(ErrorKind::checkpoint, "the position '{}' is not one of @NAME@ in {}; train on the same data", position,
           source_->identity());
    }
    dealt_ = dealt;
  }

 private:
  void append(std::uint64_t document, Rows& out) {
    const auto length = static_cast<std::int64_t>(source_->length(document));
    const std::int64_t inputs = std::min(length - 1, row_length_);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(inputs + 1));
    source_->read(document, 0, tokens);
    for (std::int64_t i = 0; i < row_length_; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool inside = i < inputs;  // behind it: padding, a segment of its own
      out.tokens.push_back(inside ? tokens[at] : 0);
      out.targets.push_back(inside ? tokens[at + 1] : -1);
      out.positions.push_back(static_cast<std::int32_t>(inside ? i : i - inputs));
    }
    out.segments.push_back({0});
    if (inputs < row_length_) out.segments.back().push_back(static_cast<std::int32_t>(inputs));
    out.valid_targets += inputs;
    ++out.rows;
  }

  std::unique_ptr<DocumentSource> source_;
  std::int64_t row_length_;
  int rank_, ranks_;
  std::vector<std::uint64_t> documents_;
  std::uint64_t dealt_ = 0;  // global rows
};

}  // namespace

ANANKE_PLUGIN(Batches, @CLASS@Batches, plugin::@CLASS@);

}  // namespace ananke
