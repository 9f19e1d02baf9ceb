// Experts plugin @NAME@: the built-in local experts, watched. runtime/roles/experts.h is the contract.
#include <algorithm>

#include "@NAME@.pb.h"
#include "runtime/base/log.h"
#include "runtime/model/local_experts.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/experts.h"

namespace ananke {
namespace {

// The busiest expert's load over the mean load: 1 is even, the number of experts the worst.
void report(std::uint64_t dispatch, const TensorView& counts) {
  const auto* count = counts.as<std::int32_t>();
  std::int64_t sum = 0, most = 0;
  for (std::int64_t e = 0; e < counts.elements(); ++e) {
    sum += count[e];
    most = std::max<std::int64_t>(most, count[e]);
  }
  if (sum == 0) return;
  log_info("@NAME@: dispatch {}: the busiest expert has {:.2f} times the mean load", dispatch,
           static_cast<double>(most * counts.elements()) / static_cast<double>(sum));
}

class @CLASS@Experts final : public Experts {
 public:
  @CLASS@Experts(const RoleContext&, const plugin::@CLASS@& config) : config_(config) {}
  void start(const OperatorSet& operators) override { local_ = std::make_unique<LocalExperts>(operators); }

  std::int64_t capacity(const ExpertSizes& s) const override { return local_->capacity(s); }
  std::int64_t local_experts(const ExpertSizes& s) const override { return local_->local_experts(s); }
  std::size_t saved(const ExpertSizes& s) const override { return local_->saved(s); }
  std::size_t workspace(const ExpertSizes& s) const override { return local_->workspace(s); }

  ExpertRows dispatch(Stream& stream, const TensorView& x, const Routing& routing, const TensorView& rows, Region saved,
                      Region workspace) override {
    ++dispatches_;
    if (config_.report_every() != 0 && dispatches_ % config_.report_every() == 0) {
      stream.run_on_host([dispatch = dispatches_, counts = routing.counts] { report(dispatch, counts); });
    }
    return local_->dispatch(stream, x, routing, rows, saved, workspace);
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
  plugin::@CLASS@ config_;
  std::unique_ptr<LocalExperts> local_;
  std::uint64_t dispatches_ = 0;
};

}  // namespace

ANANKE_PLUGIN(Experts, @CLASS@Experts, plugin::@CLASS@);

}  // namespace ananke
