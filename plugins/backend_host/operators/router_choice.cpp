#include "plugins/backend_host/operators/router_choice.h"

#include <algorithm>

namespace ananke::host {
namespace {

// The `count` largest of values[i] for the i in [0, n) that are allowed: largest first, ties to the lower index.
template <class Allowed>
void choose(std::int64_t n, std::int64_t count, const float* values, std::int32_t* chosen, const Allowed& allowed) {
  for (std::int64_t j = 0; j < count; ++j) {
    std::int32_t best = -1;
    for (std::int32_t i = 0; i < n; ++i) {
      if ((best < 0 || values[i] > values[best]) && allowed(i) && std::find(chosen, chosen + j, i) == chosen + j)
        best = i;
    }
    chosen[j] = best;
  }
}

constexpr auto any = [](std::int32_t) { return true; };

float two_best(const float* values, std::int64_t n) {
  std::int32_t best[2];
  choose(n, 2, values, best, any);
  return values[best[0]] + values[best[1]];
}

}  // namespace

void choose_experts(const Router::Sizes& n, const RouterRule& rule, const float* values, const ChoiceScratch& scratch,
                    std::int32_t* indices) {
  const std::int64_t size = n.experts / rule.groups;
  switch (rule.grouping) {
    case RouterRule::Grouping::none: choose(n.experts, n.k, values, indices, any); break;
    case RouterRule::Grouping::groups_limited_top_k: {
      for (std::int64_t g = 0; g < rule.groups; ++g) scratch.group_values[g] = two_best(values + g * size, size);
      std::int32_t* const end = scratch.order + rule.kept_groups;
      choose(rule.groups, rule.kept_groups, scratch.group_values, scratch.order, any);
      choose(n.experts, n.k, values, indices,
             [&](std::int32_t e) { return std::find(scratch.order, end, static_cast<std::int32_t>(e / size)) != end; });
      break;
    }
    case RouterRule::Grouping::top_k_per_group: {
      const std::int64_t each = n.k / rule.groups;
      for (std::int64_t g = 0; g < rule.groups; ++g) {
        std::int32_t* const here = indices + g * each;
        choose(size, each, values + g * size, here, any);
        for (std::int64_t j = 0; j < each; ++j) here[j] += static_cast<std::int32_t>(g * size);
      }
      break;
    }
  }
}

}  // namespace ananke::host
