#include "runtime/roles/parameters.h"

#include "faulty_parameters.pb.h"
#include "runtime/engine/inner_role.h"
#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/misbehave.h"

namespace ananke {
namespace {

class FaultyParameters final : public Parameters {
 public:
  FaultyParameters(const RoleContext& context, const plugin::FaultyParameters& config)
      : trouble_(context, config), inner_(make_inner<Parameters>("fsdp", context)) {}
  std::vector<PlanLine> plan(const ParameterTable& table, const Placement& placement) const override {
    trouble_.enter("plan");
    return inner_->plan(table, placement);
  }
  void start(const StartContext& context) override {
    compute_ = &context.backend.device().stream(Resource::compute);
    trouble_.enter("start", *compute_);
    inner_->start(context);
    fragments_.assign(inner_->fragments().begin(), inner_->fragments().end());
    if (trouble_.is("fragments", "few")) fragments_.pop_back();
    if (trouble_.is("fragments", "other place")) ++fragments_[0].where.begin;
    if (trouble_.is("fragments", "short")) fragments_[0].weight = fragments_[0].weight.slice(0, 1);
    if (trouble_.is("fragments", "no gradient")) fragments_[0].gradient.data = nullptr;
  }
  std::span<const OwnedFragment> fragments() override { return fragments_; }
  void begin(const Schedule& schedule) override {
    trouble_.enter("begin", *compute_);
    inner_->begin(schedule);
  }
  UnitViews acquire(int item, int unit) override {
    trouble_.enter("acquire", *compute_);
    UnitViews views = inner_->acquire(item, unit);
    TensorView& weights = views.weights.segments[0];
    if (trouble_.is("acquire", "short")) weights = weights.slice(0, 1);
    if (trouble_.is("acquire", "integers")) weights.dtype = DType::i32;
    if (trouble_.is("acquire", "wild")) weights.data = reinterpret_cast<void*>(0x100);
    if (trouble_.is("acquire", "nothing")) views = {};
    return views;
  }
  void release(int item, int unit) override { inner_->release(item, unit); }
  void reduce(int item, int unit) override {
    trouble_.enter("reduce", *compute_);
    inner_->reduce(item, unit);
  }
  void finish() override {
    trouble_.enter("finish", *compute_);
    inner_->finish();
  }
  void updated() override { inner_->updated(); }
  Traffic traffic() const override {
    if (trouble_.is("traffic", "no axis")) return {{}};
    return inner_->traffic();
  }

 private:
  Trouble trouble_;
  std::unique_ptr<Parameters> inner_;
  std::vector<OwnedFragment> fragments_;
  Stream* compute_ = nullptr;
};

}  // namespace

ANANKE_PLUGIN(Parameters, FaultyParameters, plugin::FaultyParameters);

}  // namespace ananke
