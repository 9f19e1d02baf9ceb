// The decision of one token by one warp: which experts, by a RouterRule (operators/router.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/operators/router.h"

namespace ananke::cuda {

// Where a warp works, token after token; shared memory.
struct ChoiceScratch {
  float* values;                // [E]: what is chosen by
  float* group_values;          // [groups]
  unsigned char* closed;        // [E]: chosen already, or not to be chosen
  unsigned char* group_closed;  // [groups]
};

// Ordered as numbers are, both zeros the same; NaN below all.
__device__ inline unsigned order_of(float value) {
  if (isnan(value)) return 0;
  const unsigned bits = __float_as_uint(value == 0 ? 0.0f : value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The largest of values[i] that is not closed, ties to the lower index; as a loop that goes up from the first such i
// and moves on where a value is larger: so a NaN is taken where it is the first, and never else. At least one is open.
__device__ inline int best_of(int n, const float* values, const unsigned char* closed) {
  unsigned first = static_cast<unsigned>(n), best = first, top = 0;
  for (int i = threadIdx.x % 32; i < n; i += 32) {
    if (closed[i]) continue;
    const auto index = static_cast<unsigned>(i);
    const unsigned order = order_of(values[i]);
    first = min(first, index);
    if (order > top) {
      best = index;
      top = order;
    }
  }
  first = __reduce_min_sync(0xffffffffu, first);
  const unsigned most = __reduce_max_sync(0xffffffffu, top);
  best = __reduce_min_sync(0xffffffffu, top == most ? best : static_cast<unsigned>(n));
  return static_cast<int>(isnan(values[first]) ? first : best);
}

// The `count` best of values [0, n): chosen[j] = base + index.
__device__ inline void choose(int n, int count, const float* values, unsigned char* closed, int base,
                              std::int32_t* chosen) {
  for (int j = 0; j < count; ++j) {
    const int best = best_of(n, values, closed);
    if (threadIdx.x % 32 == 0) {
      closed[best] = 1;
      chosen[j] = base + best;
    }
    __syncwarp();
  }
}

__device__ inline float two_best(const float* values, int n) {
  int first = 0;
  for (int i = 1; i < n; ++i) {
    if (values[i] > values[first]) first = i;
  }
  int second = first == 0 ? 1 : 0;
  for (int i = second + 1; i < n; ++i) {
    if (i != first && values[i] > values[second]) second = i;
  }
  return values[first] + values[second];
}

// Opens every group and closes all but the best.
__device__ inline void keep_groups(const RouterRule& rule, int experts, const ChoiceScratch& scratch) {
  const int groups = static_cast<int>(rule.groups), size = experts / groups, lane = threadIdx.x % 32;
  for (int g = lane; g < groups; g += 32) {
    scratch.group_values[g] = two_best(scratch.values + g * size, size);
    scratch.group_closed[g] = 0;
  }
  __syncwarp();
  for (int kept = 0; kept < rule.kept_groups; ++kept) {
    const int best = best_of(groups, scratch.group_values, scratch.group_closed);
    if (lane == 0) scratch.group_closed[best] = 1;
    __syncwarp();
  }
  for (int e = lane; e < experts; e += 32) scratch.closed[e] = !scratch.group_closed[e / size];
  __syncwarp();
}

// Fills indices [k] from scratch.values, which all lanes have written and synchronised. Not for forced balance.
__device__ inline void choose_experts(int experts, int k, const RouterRule& rule, const ChoiceScratch& scratch,
                                      std::int32_t* indices) {
  for (int e = threadIdx.x % 32; e < experts; e += 32) scratch.closed[e] = 0;
  __syncwarp();
  if (rule.grouping == RouterRule::Grouping::top_k_per_group) {
    const int groups = static_cast<int>(rule.groups), size = experts / groups, each = k / groups;
    for (int g = 0; g < groups; ++g) {
      choose(size, each, scratch.values + g * size, scratch.closed + g * size, g * size, indices + g * each);
    }
    return;
  }
  if (rule.grouping == RouterRule::Grouping::groups_limited_top_k) keep_groups(rule, experts, scratch);
  choose(experts, k, scratch.values, scratch.closed, 0, indices);
}

}  // namespace ananke::cuda
