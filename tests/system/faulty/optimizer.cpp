#include "runtime/roles/optimizer.h"

#include <limits>

#include "faulty_optimizer.pb.h"
#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/misbehave.h"

namespace ananke {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

class FaultyOptimizer final : public Optimizer {
 public:
  FaultyOptimizer(const RoleContext& context, const plugin::FaultyOptimizer& config) : trouble_(context, config) {}
  ~FaultyOptimizer() override { trouble_.enter("destructor"); }
  OptimizerLayout layout(const Parameter&) const override {
    return trouble_.is("layout", "unknown") ? static_cast<OptimizerLayout>(7) : OptimizerLayout::any_fragment;
  }
  double cost(const Parameter&) const override { return trouble_.is("cost", "negative") ? -1 : 1; }
  std::vector<StateTensor> states(const Parameter&) const override {
    if (trouble_.is("states", "no name")) return {{""}};
    if (trouble_.is("states", "same name")) return {{"a"}, {"a"}};
    return {};
  }
  double learning_rate() const override { return trouble_.is("learning_rate", "nan") ? nan : 1; }
  void update(Stream& stream, const OperatorSet& operators, const OptimizerUpdate& a) override {
    trouble_.enter("update", stream);
    if (trouble_.is("update", "nan")) {
      stream.run_on_host([weight = a.weight] { *weight.as<float>() = static_cast<float>(nan); });
    }
    if (trouble_.is("update", "wild view")) {  // large enough for all threads of the backend
      const TensorView wild{reinterpret_cast<void*>(0x100), DType::f32, {1 << 20}};
      operators.adamw->update(stream, {wild, wild, wild, wild, 1, 0.9, 0.9, 1e-8, 0, a.step, a.scale, a.finite});
    }
    if (trouble_.is("update", "short view")) {
      operators.adamw->update(
          stream, {a.weight, a.gradient, a.scale, a.scale, 1, 0.9, 0.9, 1e-8, 0, a.step, a.scale, a.finite});
    }
  }

 private:
  Trouble trouble_;
};

}  // namespace

ANANKE_PLUGIN(Optimizer, FaultyOptimizer, plugin::FaultyOptimizer);

}  // namespace ananke
