// Optimizer plugin: AdamW on any fragment of a parameter, since it is elementwise.
#include "plugins/adamw/adamw.pb.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/optimizer.h"

namespace ananke {
namespace {

class AdamW final : public Optimizer {
 public:
  AdamW(const RoleContext&, const plugin::AdamW& config) : config_(config) {
    // At 1 the bias correction divides by zero; a job's own check (adamw.proto) comes first.
    if (config.beta1() >= 1) fail(ErrorKind::config, "adamw: beta1 {} must be below 1; set it to 0.9", config.beta1());
    if (config.beta2() >= 1) fail(ErrorKind::config, "adamw: beta2 {} must be below 1; set it to 0.95", config.beta2());
  }

  OptimizerLayout layout(const Parameter&) const override { return OptimizerLayout::any_fragment; }
  double cost(const Parameter& parameter) const override { return static_cast<double>(parameter.shape.elements()); }
  std::vector<StateTensor> states(const Parameter&) const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }
  double learning_rate() const override { return config_.lr(); }
  bool stores_in(DType type) const override { return type == DType::f32 || type == DType::bf16; }

  void update(Stream& stream, const OperatorSet& operators, const OptimizerUpdate& a) override {
    update(stream, operators, a, a.weight.elements());
  }
  // Every parameter is treated alike, so thousands of small ones are a few large ones.
  void update_all(Stream& stream, const OperatorSet& operators, std::span<const OptimizerUpdate> parts) override {
    while (!parts.empty()) {
      const std::size_t count = neighbours(parts);
      std::int64_t elements = 0;
      for (const OptimizerUpdate& part : parts.first(count)) elements += part.weight.elements();
      update(stream, operators, parts.front(), elements);
      parts = parts.subspan(count);
    }
  }

 private:
  // `elements` from where the part begins.
  void update(Stream& stream, const OperatorSet& operators, const OptimizerUpdate& a, std::int64_t elements) {
    const auto all = [&](const TensorView& first) { return TensorView{first.data, first.dtype, {elements}}; };
    operators.adamw->update(stream, {.weight = all(a.weight),
                                     .gradient = all(a.gradient),
                                     .exp_avg = all(a.states[0]),
                                     .exp_avg_sq = all(a.states[1]),
                                     .lr = config_.lr() * a.lr_factor,
                                     .beta1 = config_.beta1(),
                                     .beta2 = config_.beta2(),
                                     .eps = config_.eps(),
                                     .weight_decay = config_.weight_decay(),
                                     .step = a.step,
                                     .scale = a.scale,
                                     .finite = a.finite});
  }

  plugin::AdamW config_;
};

}  // namespace

ANANKE_PLUGIN(Optimizer, AdamW, plugin::AdamW);

}  // namespace ananke
