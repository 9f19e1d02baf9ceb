#include "runtime/roles/experts.h"

#include "runtime/model/local_experts.h"
#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/experts.pb.h"

namespace ananke {
namespace {

using Fault = plugin::FaultyExperts;

class FaultyExperts final : public Experts {
 public:
  FaultyExperts(const RoleContext&, const plugin::FaultyExperts& config) : fault_(config.fault()) {}
  void start(const OperatorSet& operators) override { local_ = std::make_unique<LocalExperts>(operators); }
  std::int64_t capacity(const ExpertSizes& s) const override {
    return fault_ == Fault::NEGATIVE_CAPACITY ? -1 : local_->capacity(s);
  }
  std::int64_t local_experts(const ExpertSizes& s) const override {
    return fault_ == Fault::FEW_EXPERTS ? 1 : local_->local_experts(s);
  }
  std::size_t saved(const ExpertSizes& s) const override { return local_->saved(s); }
  std::size_t workspace(const ExpertSizes& s) const override {
    return fault_ == Fault::HUGE_WORKSPACE ? std::size_t{1} << 60 : local_->workspace(s);
  }
  ExpertRows dispatch(Stream& stream, const TensorView& x, const Routing& routing, const TensorView& rows, Region saved,
                      Region workspace) override {
    ExpertRows out = local_->dispatch(stream, x, routing, rows, saved, workspace);
    if (fault_ == Fault::WRONG_OFFSETS) out.offsets = out.offsets.slice(0, 1);
    if (fault_ == Fault::NO_ROWS) out.rows.data = nullptr;
    return out;
  }
  TensorView offsets(Region saved, const ExpertSizes& s) const override { return local_->offsets(saved, s); }
  void combine(Stream& stream, const TensorView& rows, const Routing& routing, const TensorView& y, Region saved,
               Region workspace) override {
    local_->combine(stream, rows, routing, y, saved, workspace);
  }
  void combine_backward(Stream& stream, const TensorView& dy, const TensorView& rows, const Routing& routing,
                        const TensorView& drows, const TensorView& dweights, Region saved, Region workspace) override {
    local_->combine_backward(stream, dy, rows, routing, drows, dweights, saved, workspace);
  }
  void dispatch_backward(Stream& stream, const TensorView& drows, const Routing& routing, const TensorView& dx,
                         Region saved, Region workspace) override {
    local_->dispatch_backward(stream, drows, routing, dx, saved, workspace);
  }

 private:
  Fault::Fault fault_;
  std::unique_ptr<LocalExperts> local_;
};

}  // namespace

ANANKE_PLUGIN(Experts, FaultyExperts, plugin::FaultyExperts);

}  // namespace ananke
