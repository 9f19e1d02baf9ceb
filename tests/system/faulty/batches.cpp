#include "runtime/roles/batches.h"

#include "ananke/job.pb.h"
#include "faulty_batches.pb.h"
#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/misbehave.h"

namespace ananke {
namespace {

class FaultyBatches final : public Batches {
 public:
  FaultyBatches(const RoleContext& context, const plugin::FaultyBatches& config)
      : trouble_(context, config), length_(context.job.training().sequence_length()), ranks_(context.mesh.ranks()) {}
  bool next(std::int64_t count, Rows& out) override {
    trouble_.enter("next");
    const auto is = [&](std::string_view fault) { return trouble_.is("next", fault); };
    out = Rows{};
    if (is("no rows")) return false;
    out.rows = count / ranks_;
    out.row_length = length_;
    const auto tokens = static_cast<std::size_t>(out.rows * length_);
    out.tokens.assign(tokens, is("foreign token") ? 1000000 : 1);
    out.targets.assign(is("short targets") ? 1 : tokens, 2);
    out.positions.assign(tokens, 0);
    out.segments.assign(static_cast<std::size_t>(out.rows), {is("no segment") ? 5 : 0});
    out.valid_targets = static_cast<std::int64_t>(tokens) + (is("wrong count") ? 1 : 0);
    return true;
  }
  std::string position() const override {
    trouble_.enter("position");
    return "here";
  }
  void restore(const std::string&) override {}

 private:
  Trouble trouble_;
  std::int64_t length_, ranks_;
};

}  // namespace

ANANKE_PLUGIN(Batches, FaultyBatches, plugin::FaultyBatches);

}  // namespace ananke
