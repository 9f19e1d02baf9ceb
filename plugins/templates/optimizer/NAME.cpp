// Optimizer plugin @NAME@: SGD with momentum. runtime/roles/optimizer.h is the contract.
#include "@NAME@.pb.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/optimizer.h"

namespace ananke {
namespace {

class @CLASS@Optimizer final : public Optimizer {
 public:
  @CLASS@Optimizer(const RoleContext&, const plugin::@CLASS@& config) : config_(config) {}

  // Elementwise, so any part of a parameter will do: a rank is given the elements that it owns, as flat views.
  OptimizerLayout layout(const Parameter&) const override { return OptimizerLayout::any_fragment; }
  double cost(const Parameter& parameter) const override { return static_cast<double>(parameter.shape.elements()); }
  // One f32 for every element of the weight, zero at first: the runtime keeps it, saves it in checkpoints under this
  // name and brings it back, on any number of ranks. Members of this object are not saved.
  std::vector<StateTensor> states(const Parameter&) const override { return {{"momentum_buffer"}}; }
  double learning_rate() const override { return config_.lr(); }

  // Of one part of one parameter; `step` counts from 1. It only puts work on the stream, which runs after this call has
  // returned: so the work holds copies of the views and of the numbers. scale and finite are values on the device,
  // which only such work can read.
  void update(Stream& stream, const OperatorSet&, const OptimizerUpdate& a) override {
    const auto lr = static_cast<float>(config_.lr() * a.lr_factor), momentum = static_cast<float>(config_.momentum());
    stream.run_on_host([w = a.weight, g = a.gradient, m = a.states[0], scale = a.scale, finite = a.finite, lr, momentum] {
      if (*finite.as<std::int32_t>() == 0) return;  // the step is not applied
      const float clip = *scale.as<float>();
      float *weight = w.as<float>(), *buffer = m.as<float>();
      const float* gradient = g.as<float>();
      for (std::int64_t i = 0; i < w.elements(); ++i) {
        buffer[i] = momentum * buffer[i] + clip * gradient[i];
        weight[i] -= lr * buffer[i];
      }
    });
  }

 private:
  plugin::@CLASS@ config_;
};

}  // namespace

ANANKE_PLUGIN(Optimizer, @CLASS@Optimizer, plugin::@CLASS@);

}  // namespace ananke
