#include "runtime/model/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "ananke/job.pb.h"

namespace ananke {
namespace {

using Operators = google::protobuf::RepeatedField<int>;

// Cheap, or so large that keeping it costs more than making it again.
constexpr Training::LayerOperator default_again[] = {Training::NORMS, Training::DISPATCH, Training::GROUPED_MLP};

LayerOperator operator_of(Training::LayerOperator name) {
  switch (name) {
    case Training::NORMS: return LayerOperator::norms;
    case Training::PROJECTIONS: return LayerOperator::projections;
    case Training::ATTENTION: return LayerOperator::attention;
    case Training::RESIDUAL: return LayerOperator::residual;
    case Training::ROUTER: return LayerOperator::router;
    case Training::DISPATCH: return LayerOperator::dispatch;
    case Training::GROUPED_MLP: break;
  }
  return LayerOperator::grouped_mlp;
}

std::vector<Training::LayerOperator> chosen(const Operators& operators) {
  if (operators.empty()) return {std::begin(default_again), std::end(default_again)};
  std::vector<Training::LayerOperator> all;
  for (const int one : operators) all.push_back(static_cast<Training::LayerOperator>(one));
  return all;
}

LayerOperators made_again(Training::Recompute mode, const Operators& operators) {
  if (mode == Training::NONE) return {};
  if (mode == Training::FULL) return LayerOperators::all();
  LayerOperators again;
  for (const Training::LayerOperator one : chosen(operators)) again.add(operator_of(one));
  return again;
}

std::string text(Training::Recompute mode, const Operators& operators) {
  std::string name = Training::Recompute_Name(mode);
  if (mode != Training::SELECTIVE) return name;
  const char* between = " (";
  for (const Training::LayerOperator one : chosen(operators)) {
    std::string lower = Training::LayerOperator_Name(one);
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    name += between + lower;
    between = ", ";
  }
  return name + ")";
}

}  // namespace

bool Recompute::any(LayerOperator one) const {
  return std::any_of(made_again.begin(), made_again.end(), [one](LayerOperators layer) { return layer.has(one); });
}

Recompute Recompute::everything(std::int64_t layers) {
  return {std::vector<LayerOperators>(static_cast<std::size_t>(layers), LayerOperators::all())};
}

Recompute recompute_of(const Training& training, std::int64_t layers) {
  Recompute recompute;
  recompute.made_again.assign(static_cast<std::size_t>(layers),
                              made_again(training.recompute(), training.recompute_operators()));
  for (const Training::RecomputeLayers& range : training.recompute_layers()) {
    for (std::uint32_t layer = range.first(); layer <= range.last(); ++layer) {
      recompute.made_again.at(layer) = made_again(range.recompute(), range.operators());
    }
  }
  return recompute;
}

std::string recompute_text(const Training& training) {
  std::string all = text(training.recompute(), training.recompute_operators());
  for (const Training::RecomputeLayers& range : training.recompute_layers()) {
    all += range.first() == range.last() ? fmt::format(", layer {} ", range.first())
                                         : fmt::format(", layers {}-{} ", range.first(), range.last());
    all += text(range.recompute(), range.operators());
  }
  return all;
}

}  // namespace ananke
