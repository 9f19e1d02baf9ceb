// Optimizer plugin lion: the sign of an interpolated momentum (Chen et al. 2023, algorithm 2).
#include "lion.pb.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/optimizer.h"

namespace ananke {
namespace {

class LionOptimizer final : public Optimizer {
 public:
  LionOptimizer(const RoleContext&, const plugin::Lion& config) : config_(config) {}

  OptimizerLayout layout(const Parameter&) const override { return OptimizerLayout::any_fragment; }
  double cost(const Parameter& parameter) const override { return static_cast<double>(parameter.shape.elements()); }
  std::vector<StateTensor> states(const Parameter&) const override { return {{"exp_avg"}}; }
  double learning_rate() const override { return config_.lr(); }

  void update(Stream& stream, const OperatorSet&, const OptimizerUpdate& a) override {
    const auto lr = static_cast<float>(config_.lr() * a.lr_factor);
    const auto keep = static_cast<float>(1 - config_.lr() * a.lr_factor * config_.weight_decay());
    const auto beta1 = static_cast<float>(config_.beta1()), beta2 = static_cast<float>(config_.beta2());
    stream.run_on_host(
        [w = a.weight, g = a.gradient, m = a.states[0], scale = a.scale, finite = a.finite, lr, keep, beta1, beta2] {
          if (*finite.as<std::int32_t>() == 0) return;
          const float clip = *scale.as<float>();
          float *weight = w.as<float>(), *momentum = m.as<float>();
          const float* gradient = g.as<float>();
          for (std::int64_t i = 0; i < w.elements(); ++i) {
            const float slope = clip * gradient[i];
            const float direction = beta1 * momentum[i] + (1 - beta1) * slope;
            const float sign = static_cast<float>(direction > 0) - static_cast<float>(direction < 0);
            weight[i] = keep * weight[i] - lr * sign;
            momentum[i] = beta2 * momentum[i] + (1 - beta2) * slope;
          }
        });
  }

 private:
  plugin::Lion config_;
};

}  // namespace

ANANKE_PLUGIN(Optimizer, LionOptimizer, plugin::Lion);

}  // namespace ananke
