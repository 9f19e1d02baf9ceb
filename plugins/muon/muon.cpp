// Optimizer plugin: Muon on whole matrices. Momentum and update are elementwise; what lies between, the Newton-Schulz
// iteration, needs the matrix.
#include <algorithm>
#include <cmath>
#include <map>
#include <regex>

#include "ananke/job.pb.h"
#include "plugins/muon/muon.pb.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/optimizer.h"

namespace ananke {
namespace {

using Config = plugin::Muon;

// Rows of a head, per parameter that `per_head` matches.
std::map<std::string, std::int64_t> find_heads(const Config& config, const Job& job) {
  std::map<std::string, std::int64_t> heads;
  if (config.per_head().empty()) return heads;
  std::regex pattern;
  try {
    pattern = std::regex(config.per_head(), std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    fail(ErrorKind::config, "muon: per_head '{}' is not a regular expression: {}", config.per_head(), error.what());
  }
  const std::int64_t rows = job.model().head_dim();
  const ParameterTable table(job.model());
  for (const Parameter& parameter : table.parameters()) {
    if (!std::regex_search(parameter.name, pattern)) continue;
    if (parameter.shape.rank() != 2 || parameter.shape[0] % rows != 0) {
      fail(ErrorKind::config,
           "muon: per_head '{}' matches {} {}, whose rows are not heads of head_dim {}; match query, key and value "
           "projections only: \"q_proj|k_proj|v_proj\"",
           config.per_head(), parameter.name, to_string(parameter.shape), rows);
    }
    heads[parameter.name] = rows;
  }
  if (heads.empty()) {
    fail(ErrorKind::config,
         "muon: per_head '{}' matches no parameter; names are like 'model.layers.0.self_attn.q_proj.weight'",
         config.per_head());
  }
  return heads;
}

class MuonOptimizer final : public Optimizer {
 public:
  MuonOptimizer(const RoleContext& context, const Config& config)
      : config_(config), heads_(find_heads(config, context.job)) {
    // A job's own check (muon.proto) comes first.
    if (config.eps() <= 0) fail(ErrorKind::config, "muon: eps {} must be above 0; set it to 1e-7", config.eps());
    if (config.momentum() >= 1) {
      fail(ErrorKind::config, "muon: momentum {} must be below 1; set it to 0.95", config.momentum());
    }
  }

  OptimizerLayout layout(const Parameter& parameter) const override {
    const bool looked_up = parameter.kind == ParameterKind::embedding || parameter.kind == ParameterKind::head;
    if (parameter.shape.rank() == 2 && !looked_up) return OptimizerLayout::whole_matrix;
    fail(ErrorKind::config,
         "muon cannot update {} {}: it is {} {}, and Muon is for the matrices between them; name the matrices in its "
         "rule and end the list with another optimizer: optimizer {{ match: \"experts|_proj\" use: \"muon\" }} "
         "optimizer {{ match: \".*\" use: \"adamw\" }}",
         parameter.name, to_string(parameter.shape), parameter.kind == ParameterKind::embedding ? "an" : "a",
         name_of(parameter.kind));
  }

  // Multiplications of the iteration's products: of a step X X^T and B X have s^2 l each, A A has s^3.
  double cost(const Parameter& parameter) const override {
    const double rows = static_cast<double>(matrix_rows(parameter)), columns = static_cast<double>(parameter.shape[1]);
    const double s = std::min(rows, columns), l = std::max(rows, columns);
    const double matrices = static_cast<double>(parameter.shape[0]) / rows;
    return matrices * config_.ns_steps() * s * s * (2 * l + s);
  }
  std::vector<StateTensor> states(const Parameter&) const override { return {{"momentum_buffer"}}; }
  double learning_rate() const override { return config_.lr(); }

  std::int64_t matrix_rows(const Parameter& parameter) const override {
    const auto head = heads_.find(parameter.name);
    return head == heads_.end() ? parameter.shape[0] : head->second;
  }

  std::size_t transform_workspace(const OperatorSet& operators, std::int64_t count, std::int64_t rows,
                                  std::int64_t columns) const override {
    return operators.newton_schulz->workspace({count, rows, columns});
  }

  void prepare(Stream& stream, const OperatorSet& operators, const OptimizerUpdate& a,
               const TensorView& transfer) override {
    operators.momentum->accumulate(stream, {.gradient = a.gradient,
                                            .momentum = a.states[0],
                                            .out = transfer,
                                            .mu = config_.momentum(),
                                            .nesterov = config_.nesterov(),
                                            .scale = a.scale,
                                            .finite = a.finite});
  }

  void transform(Stream& stream, const OperatorSet& operators, const MatrixBatch& batch) override {
    const bool bf16 = config_.newton_schulz() == Config::BFLOAT16;
    operators.newton_schulz->run(stream,
                                 {.matrices = batch.matrices,
                                  .steps = static_cast<int>(config_.ns_steps()),
                                  .a = config_.ns_a(),
                                  .b = config_.ns_b(),
                                  .c = config_.ns_c(),
                                  .eps = config_.eps(),
                                  .precision = bf16 ? NewtonSchulz::Precision::bf16 : NewtonSchulz::Precision::f32,
                                  .finite = batch.finite,
                                  .workspace = batch.workspace});
  }

  void apply(Stream& stream, const OperatorSet& operators, const OptimizerUpdate& a,
             const TensorView& direction) override {
    const double lr = config_.lr() * a.lr_factor;
    operators.momentum->apply(stream, {.weight = a.weight,
                                       .direction = direction,
                                       .keep = 1 - lr * config_.weight_decay(),
                                       .rate = lr * adjustment(a.parameter),
                                       .finite = a.finite});
  }

 private:
  double adjustment(const Parameter& parameter) const {
    const double rows = static_cast<double>(matrix_rows(parameter)), columns = static_cast<double>(parameter.shape[1]);
    switch (config_.adjust_lr_fn()) {
      case Config::MATCH_RMS_ADAMW: return 0.2 * std::sqrt(std::max(rows, columns));
      case Config::SPECTRAL_UNCLAMPED: return std::sqrt(rows / columns);
      default: return std::sqrt(std::max(1.0, rows / columns));
    }
  }

  Config config_;
  std::map<std::string, std::int64_t> heads_;
};

}  // namespace

ANANKE_PLUGIN(Optimizer, MuonOptimizer, plugin::Muon);

}  // namespace ananke
