// What must hold of training.recompute, its operators and its ranges of layers.
#include <algorithm>
#include <set>

#include "ananke/job.pb.h"
#include "runtime/config/validate.h"
#include "runtime/config/validate_parts.h"

namespace ananke {
namespace {

using Operators = google::protobuf::RepeatedField<int>;

void check_operators(Problems* problems, const std::string& path, Training::Recompute mode,
                     const Operators& operators) {
  if (!operators.empty() && mode != Training::SELECTIVE) {
    add(problems, path, "names {} operator{}, but recompute is {}; say SELECTIVE, or remove them", operators.size(),
        operators.size() == 1 ? "" : "s", Training::Recompute_Name(mode));
  }
  std::set<int> seen;
  for (const int one : operators) {
    if (seen.insert(one).second) continue;
    add(problems, path, "names {} twice; name each operator once",
        Training::LayerOperator_Name(static_cast<Training::LayerOperator>(one)));
  }
}

}  // namespace

Problems check_recompute(const Training& training, const Model& model) {
  Problems problems;
  check_operators(&problems, "training.recompute_operators", training.recompute(), training.recompute_operators());
  const std::uint32_t layers = model.num_hidden_layers();
  for (int i = 0; i < training.recompute_layers_size(); ++i) {
    const Training::RecomputeLayers& range = training.recompute_layers(i);
    const std::string path = fmt::format("training.recompute_layers[{}]", i);
    check_operators(&problems, path + ".operators", range.recompute(), range.operators());
    if (range.first() > range.last()) {
      add(&problems, path + ".last", "is {}, less than first {}; swap or change them", range.last(), range.first());
    } else if (range.last() >= layers) {
      add(&problems, path + ".last", "is {}, but the last of model.num_hidden_layers {} is {}; lower it", range.last(),
          layers, layers - 1);
    }
    for (int before = 0; before < i; ++before) {
      const Training::RecomputeLayers& other = training.recompute_layers(before);
      const std::uint32_t from = std::max(range.first(), other.first()), to = std::min(range.last(), other.last());
      if (from > to) continue;
      add(&problems, path,
          "is layers {} to {}, of which {} to {} are in training.recompute_layers[{}] too; name each "
          "layer in one range",
          range.first(), range.last(), from, to, before);
    }
  }
  return problems;
}

}  // namespace ananke
