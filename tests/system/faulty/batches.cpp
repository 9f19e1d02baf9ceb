#include "runtime/roles/batches.h"

#include "ananke/job.pb.h"
#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/batches.pb.h"

namespace ananke {
namespace {

using Fault = plugin::FaultyBatches;

class FaultyBatches final : public Batches {
 public:
  FaultyBatches(const RoleContext& context, const plugin::FaultyBatches& config)
      : fault_(config.fault()), length_(context.job.training().sequence_length()), ranks_(context.mesh.ranks()) {}
  bool next(std::int64_t count, Rows& out) override {
    out = Rows{};
    if (fault_ == Fault::NO_ROWS) return false;
    out.rows = count / ranks_;
    out.row_length = length_;
    const auto tokens = static_cast<std::size_t>(out.rows * length_);
    out.tokens.assign(tokens, fault_ == Fault::FOREIGN_TOKEN ? 1000000 : 1);
    out.targets.assign(fault_ == Fault::SHORT_TARGETS ? 1 : tokens, 2);
    out.positions.assign(tokens, 0);
    out.segments.assign(static_cast<std::size_t>(out.rows), {fault_ == Fault::NO_SEGMENT ? 5 : 0});
    out.valid_targets = static_cast<std::int64_t>(tokens) + (fault_ == Fault::WRONG_COUNT ? 1 : 0);
    return true;
  }
  std::string position() const override { return "here"; }
  void restore(const std::string&) override {}

 private:
  Fault::Fault fault_;
  std::int64_t length_, ranks_;
};

}  // namespace

ANANKE_PLUGIN(Batches, FaultyBatches, plugin::FaultyBatches);

}  // namespace ananke
