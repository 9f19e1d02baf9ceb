// The decision of one token: which experts, by a RouterRule.
#pragma once

#include <cstdint>

#include "runtime/operators/router.h"

namespace ananke::host {

// Memory that one task uses token after token.
struct ChoiceScratch {
  float* group_values;  // [groups]
  std::int32_t* order;  // [groups]
};

// values [E]: what is chosen by. Fills indices [k], all valid and different even among NaN. Not for forced balance.
void choose_experts(const Router::Sizes& n, const RouterRule& rule, const float* values, const ChoiceScratch& scratch,
                    std::int32_t* indices);

}  // namespace ananke::host
