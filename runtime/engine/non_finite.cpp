#include "runtime/engine/non_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/engine/stored_values.h"

namespace ananke {
namespace {

struct Found {
  const Parameter* parameter;  // null: nothing
  std::int64_t element;
  float value;
};

template <class View>
Found find(Device& device, const ParameterTable& table, std::span<const OwnedFragment> fragments, View view) {
  std::vector<float> values;
  for (const OwnedFragment& fragment : fragments) {
    values.resize(static_cast<std::size_t>(fragment.where.count));
    read_f32(device, view(fragment), values.data());
    const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    if (bad == values.end()) continue;
    return {&table.parameters()[static_cast<std::size_t>(fragment.where.parameter)],
            fragment.where.begin + (bad - values.begin()), *bad};
  }
  return {nullptr, 0, 0};
}

}  // namespace

std::string find_non_finite_weight(Device& device, const ParameterTable& table,
                                   std::span<const OwnedFragment> fragments,
                                   const std::vector<std::string>& optimizers) {
  const Found found = find(device, table, fragments, [](const OwnedFragment& one) { return one.weight; });
  if (found.parameter == nullptr) return {};
  const auto index = static_cast<std::size_t>(found.parameter - table.parameters().data());
  return fmt::format("weight {}, element {}, is {}; optimizer plugin '{}' updates it", found.parameter->name,
                     found.element, found.value, optimizers.at(index));
}

std::string find_non_finite_gradient(Device& device, const ParameterTable& table,
                                     std::span<const OwnedFragment> fragments) {
  const Found found = find(device, table, fragments, [](const OwnedFragment& one) { return one.gradient; });
  if (found.parameter == nullptr) return {};
  return fmt::format("the gradient of {}, element {}, is {}", found.parameter->name, found.element, found.value);
}

}  // namespace ananke
