// Reference of Router (operators/router.h): the definition in plain loops, for tests and finite differences.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace ananke::reference {

struct RouterSizes {
  std::int64_t tokens, hidden, experts, k;
  bool normalise;
};

// softmax(x[t] gate^T)
template <class S>
std::vector<S> router_probabilities(const RouterSizes& n, const S* x, const S* gate, std::int64_t t) {
  std::vector<S> p(static_cast<std::size_t>(n.experts));
  for (std::int64_t e = 0; e < n.experts; ++e) {
    for (std::int64_t j = 0; j < n.hidden; ++j) p[e] += x[t * n.hidden + j] * gate[e * n.hidden + j];
  }
  S largest = p[0], sum = 0;
  for (S value : p) largest = value > largest ? value : largest;
  for (S& value : p) sum += value = std::exp(value - largest);
  for (S& value : p) value /= sum;
  return p;
}

// indices are an input when `replay`, else the k largest, largest first, ties to the lower index.
template <class S>
void router_forward(const RouterSizes& n, const S* x, const S* gate, bool replay, std::int32_t* indices, S* weights,
                    std::int32_t* counts) {
  for (std::int64_t e = 0; e < n.experts; ++e) counts[e] = 0;
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    const std::vector<S> p = router_probabilities(n, x, gate, t);
    std::vector<bool> taken(p.size());
    S sum = 0;
    for (std::int64_t j = 0; j < n.k; ++j) {
      std::int32_t& chosen = indices[t * n.k + j];
      if (!replay) {
        chosen = -1;
        for (std::int64_t e = 0; e < n.experts; ++e) {
          if (!taken[e] && (chosen < 0 || p[e] > p[chosen])) chosen = static_cast<std::int32_t>(e);
        }
        taken[chosen] = true;
      }
      ++counts[chosen];
      sum += weights[t * n.k + j] = p[chosen];
    }
    for (std::int64_t j = 0; n.normalise && j < n.k; ++j) weights[t * n.k + j] /= sum;
  }
}

// dx and dgate are added to. The decision itself has no gradient.
template <class S>
void router_backward(const RouterSizes& n, const S* x, const S* gate, const std::int32_t* indices, const S* dweights,
                     S* dx, S* dgate) {
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    const std::vector<S> p = router_probabilities(n, x, gate, t);
    std::vector<S> dp(p.size());
    S sum = 0, weighted = 0;  // w_j = p_j / sum: dp_j = (dw_j - sum_i dw_i w_i) / sum
    for (std::int64_t j = t * n.k; j < (t + 1) * n.k; ++j) {
      sum += p[indices[j]];
      weighted += dweights[j] * p[indices[j]];
    }
    for (std::int64_t j = t * n.k; j < (t + 1) * n.k; ++j) {
      dp[indices[j]] += n.normalise ? (dweights[j] - weighted / sum) / sum : dweights[j];
    }
    S mean = 0;
    for (std::int64_t e = 0; e < n.experts; ++e) mean += p[e] * dp[e];
    for (std::int64_t e = 0; e < n.experts; ++e) {
      const S dlogit = p[e] * (dp[e] - mean);
      for (std::int64_t j = 0; j < n.hidden; ++j) {
        dx[t * n.hidden + j] += dlogit * gate[e * n.hidden + j];
        dgate[e * n.hidden + j] += dlogit * x[t * n.hidden + j];
      }
    }
  }
}

}  // namespace ananke::reference
