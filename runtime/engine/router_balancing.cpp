#include "runtime/engine/router_balancing.h"

#include <algorithm>

#include "ananke/model.pb.h"
#include "runtime/base/error.h"
#include "runtime/model/region_cutter.h"

namespace ananke {
namespace {

std::vector<int> moe_layers(const ParameterTable& table) {
  std::vector<int> layers;
  for (const Block& block : table.blocks()) {
    if (block.moe) layers.push_back(block.layer);
  }
  return layers;
}

TensorView row(const TensorView& rows, std::int64_t index, std::int64_t count) {
  return rows.slice(index * count, count);
}

}  // namespace

struct RouterBalancing::Layout {
  TensorView biases, rates, statistics, totals, factors, load, losses;
  std::size_t bytes = 0;

  Layout(Region region, bool biased, std::int64_t layers, std::int64_t experts, std::int64_t microbatches) {
    RegionCutter cutter = region.data ? RegionCutter(region) : RegionCutter();
    if (layers == 0) return;
    if (biased) {
      biases = cutter.tensor(DType::f32, {layers, experts});
      rates = cutter.tensor(DType::f32, {layers});
    }
    statistics = cutter.tensor(DType::f64, {microbatches, layers, Router::statistics_size(experts)});
    totals = cutter.tensor(DType::f64, {microbatches, experts + 2});
    factors = cutter.tensor(DType::f32, {microbatches, experts + 1});
    load = cutter.tensor(DType::f64, {layers * (experts + 1) + 1});
    losses = cutter.tensor(DType::f64, {2});
    bytes = cutter.used();
  }
};

std::vector<PlanLine> RouterBalancing::plan(const Model& model, const ParameterTable& table, int microbatches) {
  const auto layers = static_cast<std::int64_t>(moe_layers(table).size());
  const std::uint64_t bytes =
      Layout({}, model.e_score_correction_bias(), layers, model.num_experts(), microbatches).bytes;
  if (bytes == 0) return {};
  return {
      {"router balancing", Place::device, bytes},
      {"router balancing (host)", Place::host, sizeof(double) + static_cast<std::uint64_t>(layers) * sizeof(float)}};
}

// The sum of a step's load is the largest.
std::vector<CollectiveUse> RouterBalancing::exchanges(const Model& model, const ParameterTable& table) {
  const std::uint64_t layers = moe_layers(table).size();
  if (layers == 0) return {};
  return {{"world", CollectiveKind::all_reduce, (layers * (model.num_experts() + 1) + 1) * sizeof(double)}};
}

RouterBalancing::RouterBalancing(const Model& model, const ParameterTable& table, Backend& backend, Communicator& world,
                                 int microbatches)
    : backend_(backend),
      world_(world),
      layers_(moe_layers(table)),
      experts_(model.num_experts()),
      k_(model.num_experts_per_tok()),
      microbatches_(microbatches),
      auxiliary_coefficient_(model.output_router_logits() && !layers_.empty() ? model.router_aux_loss_coef() : 0),
      z_coefficient_(layers_.empty() ? 0 : model.router_z_loss_coef()) {
  const auto count = static_cast<std::int64_t>(layers_.size());
  const bool biased = model.e_score_correction_bias();
  const std::size_t bytes = Layout({}, biased, count, experts_, microbatches).bytes;
  if (bytes == 0) return;
  Device& device = backend.device();
  Stream& compute = device.stream(Resource::compute);
  memory_ = device.memory().allocate(bytes, "router balancing");
  host_ = device.host_memory().allocate(sizeof(double) + layers_.size() * sizeof(float), "router balancing (host)");
  device.zero(compute, memory_.data(), bytes);
  const Layout layout({memory_.data(), bytes}, biased, count, experts_, microbatches);
  biases_ = layout.biases;
  rates_ = layout.rates;
  statistics_ = layout.statistics;
  totals_ = layout.totals;
  factors_ = layout.factors;
  load_ = layout.load;
  own_losses_ = layout.losses;
  before_ = device.make_event();
  loaded_ = device.make_event();
  for (int m = 0; m < microbatches; ++m) reduced_.push_back(device.make_event());
  if (!biased) return;
  auto* rates = host_.view(DType::f32, {count}, sizeof(double)).as<float>();
  const auto& fixed = model.router_bias_fixed_layers();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const bool moves = std::find(fixed.begin(), fixed.end(), static_cast<std::uint32_t>(layers_[i])) == fixed.end();
    rates[i] = moves ? static_cast<float>(model.router_bias_update_rate()) : 0.0F;
  }
  device.copy(compute, rates_.data, rates, rates_.bytes());
}

std::int64_t RouterBalancing::row_of(int layer) const {
  const auto found = std::lower_bound(layers_.begin(), layers_.end(), layer);
  ANANKE_CHECK(found != layers_.end() && *found == layer, "layer {} has no router", layer);
  return found - layers_.begin();
}

TensorView RouterBalancing::bias(int layer) const {
  return biases_ ? row(biases_, row_of(layer), experts_) : TensorView{};
}

TensorView RouterBalancing::statistics(int layer, int microbatch) const {
  const auto layers = static_cast<std::int64_t>(layers_.size());
  return row(statistics_, microbatch * layers + row_of(layer), Router::statistics_size(experts_));
}

void RouterBalancing::begin(std::span<const DeviceBatch> batches, const TensorView& scale, const TensorView& losses) {
  ANANKE_CHECK(std::cmp_equal(batches.size(), microbatches_), "{} microbatches in a step of {}", batches.size(),
               microbatches_);
  current_.clear();
  if (layers_.empty()) return;
  for (const DeviceBatch& batch : batches) current_.push_back({batch.tokens, batch.valid_targets, false});
  scale_ = scale;
  losses_ = losses ? losses : own_losses_;
}

void RouterBalancing::forwards_done(int microbatch) {
  if (has_losses()) sum_totals(microbatch);
  if (microbatch + 1 == microbatches_) sum_load();
}

void RouterBalancing::sum_totals(int microbatch) {
  const auto layers = static_cast<std::int64_t>(layers_.size()), size = Router::statistics_size(experts_);
  const Microbatch& here = current_.at(static_cast<std::size_t>(microbatch));
  const TensorView total = row(totals_, microbatch, experts_ + 2);
  Stream& compute = backend_.device().stream(Resource::compute);
  Stream& network = backend_.device().stream(Resource::network);
  backend_.operators().router_balance->collect(
      compute,
      {row(statistics_, microbatch, layers * size).reshaped({layers, size}), here.tokens, here.targets, total});
  compute.record(*before_);
  network.wait(*before_);
  world_.all_reduce(network, total, Reduction::sum);
  network.record(*reduced_[static_cast<std::size_t>(microbatch)]);
}

TensorView RouterBalancing::factors(int microbatch) {
  if (!has_losses()) return {};
  const auto layers = static_cast<std::int64_t>(layers_.size()), size = Router::statistics_size(experts_);
  Microbatch& here = current_.at(static_cast<std::size_t>(microbatch));
  const TensorView factors = row(factors_, microbatch, experts_ + 1);
  if (std::exchange(here.ready, true)) return factors;
  Stream& compute = backend_.device().stream(Resource::compute);
  compute.wait(*reduced_[static_cast<std::size_t>(microbatch)]);
  backend_.operators().router_balance->factors(
      compute,
      {row(statistics_, microbatch, layers * size).reshaped({layers, size}), row(totals_, microbatch, experts_ + 2),
       scale_, auxiliary_coefficient_, z_coefficient_, factors, losses_});
  return factors;
}

// One all-reduce for all layers.
void RouterBalancing::sum_load() {
  const auto layers = static_cast<std::int64_t>(layers_.size()), loads = layers * (experts_ + 1);
  Device& device = backend_.device();
  Stream& compute = device.stream(Resource::compute);
  Stream& network = device.stream(Resource::network);
  double& tokens = *host_.view(DType::f64, {1}).as<double>();
  tokens = 0;
  for (const Microbatch& microbatch : current_) tokens += static_cast<double>(microbatch.tokens);
  backend_.operators().router_balance->load(compute,
                                            {statistics_, load_.slice(0, loads).reshaped({layers, experts_ + 1})});
  device.copy(compute, load_.slice(loads, 1).data, &tokens, sizeof tokens);
  compute.record(*before_);
  network.wait(*before_);
  world_.all_reduce(network, load_, Reduction::sum);
  network.record(*loaded_);
}

std::int64_t RouterBalancing::summary_size(const ParameterTable& table) {
  const auto layers = static_cast<std::int64_t>(moe_layers(table).size());
  return layers == 0 ? 0 : layers * RouterBalance::summary_size + 1;
}

std::int64_t RouterBalancing::summary_size() const {
  return layers_.empty() ? 0 : static_cast<std::int64_t>(layers_.size()) * RouterBalance::summary_size + 1;
}

void RouterBalancing::update(const TensorView& finite, const TensorView& summary) {
  if (layers_.empty()) return;
  const auto layers = static_cast<std::int64_t>(layers_.size()), loads = layers * (experts_ + 1);
  const TensorView load = load_.slice(0, loads).reshaped({layers, experts_ + 1});
  Stream& compute = backend_.device().stream(Resource::compute);
  compute.wait(*loaded_);
  RouterBalance& balance = *backend_.operators().router_balance;
  if (biased()) balance.update_bias(compute, {load, rates_, finite, biases_});
  const std::int64_t lines = layers * RouterBalance::summary_size;
  balance.summarise(compute, {load, biases_, summary.slice(0, lines).reshaped({layers, RouterBalance::summary_size})});
  backend_.device().copy(compute, summary.slice(lines, 1).data, load_.slice(loads, 1).data, sizeof(double));
}

std::vector<RouterBalancing::LayerLoad> RouterBalancing::describe(std::span<const double> summary) const {
  ANANKE_CHECK(std::cmp_equal(summary.size(), summary_size()), "a summary of {} values for {} MoE layers",
               summary.size(), layers_.size());
  std::vector<LayerLoad> loads;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const double* of = summary.data() + i * RouterBalance::summary_size;
    const double tokens = summary.back(), all = of[2];
    loads.push_back({layers_[i], of[0], of[1], all / static_cast<double>(experts_), tokens > 0 ? of[3] / tokens : 0,
                     of[4], of[5], tokens * static_cast<double>(k_) - all});
  }
  return loads;
}

}  // namespace ananke
