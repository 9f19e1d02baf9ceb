// Reference of Router (operators/router.h): the definition in plain loops, for tests and finite differences.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/operators/router.h"

namespace ananke::reference {

struct RouterSizes {
  std::int64_t tokens, hidden, experts, k;
  RouterRule rule;
};

template <class S>
struct RouterScores {
  std::vector<S> s;        // by the rule
  std::vector<S> q;        // s as a distribution
  std::vector<S> softmax;  // of the logits, whatever the rule
  S log_sum = 0;           // log of the sum of e^logits
};

constexpr double router_epsilon = 1e-20;

template <class S>
RouterScores<S> router_scores(const RouterSizes& n, const S* x, const S* gate, std::int64_t t) {
  std::vector<S> logits(static_cast<std::size_t>(n.experts));
  for (std::int64_t e = 0; e < n.experts; ++e) {
    for (std::int64_t j = 0; j < n.hidden; ++j) logits[e] += x[t * n.hidden + j] * gate[e * n.hidden + j];
  }
  S largest = logits[0], sum = 0, total = 0;
  for (S value : logits) largest = value > largest ? value : largest;
  for (S value : logits) sum += std::exp(value - largest);
  RouterScores<S> out;
  out.log_sum = largest + std::log(sum);
  for (S value : logits) out.softmax.push_back(std::exp(value - out.log_sum));
  out.s = out.q = out.softmax;
  if (n.rule.score == RouterRule::Score::softmax) return out;
  for (std::int64_t e = 0; e < n.experts; ++e) total += out.s[e] = 1 / (1 + std::exp(-logits[e]));
  for (std::int64_t e = 0; e < n.experts; ++e) out.q[e] = out.s[e] / (total + static_cast<S>(router_epsilon));
  return out;
}

// Indices of the `count` largest of values[begin, end), largest first, ties to the lower index.
template <class S>
std::vector<std::int64_t> router_best(const std::vector<S>& values, std::int64_t begin, std::int64_t end,
                                      std::int64_t count) {
  std::vector<std::int64_t> best;
  std::vector<bool> taken(values.size());
  for (std::int64_t j = 0; j < count; ++j) {
    std::int64_t next = -1;
    for (std::int64_t i = begin; i < end; ++i) {
      if (!taken[i] && (next < 0 || values[i] > values[next])) next = i;
    }
    taken[next] = true;
    best.push_back(next);
  }
  return best;
}

// One token's decision. values: scores plus bias.
template <class S>
std::vector<std::int64_t> router_choice(const RouterSizes& n, const std::vector<S>& values, std::int64_t t) {
  std::vector<std::int64_t> chosen;
  const std::int64_t size = n.experts / n.rule.groups;
  if (n.rule.forced_balance) {
    for (std::int64_t j = 0; j < n.k; ++j) chosen.push_back((t * n.k + j) % n.experts);
  } else if (n.rule.grouping == RouterRule::Grouping::top_k_per_group) {
    for (std::int64_t g = 0; g < n.rule.groups; ++g) {
      for (std::int64_t e : router_best(values, g * size, (g + 1) * size, n.k / n.rule.groups)) chosen.push_back(e);
    }
  } else if (n.rule.grouping == RouterRule::Grouping::groups_limited_top_k) {
    std::vector<S> groups;
    for (std::int64_t g = 0; g < n.rule.groups; ++g) {
      const std::vector<std::int64_t> two = router_best(values, g * size, (g + 1) * size, 2);
      groups.push_back(values[two[0]] + values[two[1]]);
    }
    std::vector<bool> kept(static_cast<std::size_t>(n.rule.groups));
    for (std::int64_t g : router_best(groups, 0, n.rule.groups, n.rule.kept_groups)) kept[g] = true;
    for (std::int64_t e : router_best(values, 0, n.experts, n.experts)) {
      if (kept[e / size] && static_cast<std::int64_t>(chosen.size()) < n.k) chosen.push_back(e);
    }
  } else {
    chosen = router_best(values, 0, n.experts, n.k);
  }
  return chosen;
}

// indices are an input when `replay`. bias and statistics may be null.
template <class S>
void router_forward(const RouterSizes& n, const S* x, const S* gate, const S* bias, bool replay, std::int32_t* indices,
                    S* weights, std::int32_t* counts, double* statistics = nullptr) {
  for (std::int64_t e = 0; e < n.experts; ++e) counts[e] = 0;
  for (std::int64_t i = 0; statistics && i < Router::statistics_size(n.experts); ++i) statistics[i] = 0;
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    const RouterScores<S> scores = router_scores(n, x, gate, t);
    if (!replay) {
      std::vector<S> values = scores.s;
      for (std::int64_t e = 0; bias && e < n.experts; ++e) values[e] += bias[e];
      const std::vector<std::int64_t> chosen = router_choice(n, values, t);
      for (std::int64_t j = 0; j < n.k; ++j) indices[t * n.k + j] = static_cast<std::int32_t>(chosen[j]);
    }
    S sum = static_cast<S>(router_epsilon);
    for (std::int64_t j = t * n.k; j < (t + 1) * n.k; ++j) {
      ++counts[indices[j]];
      sum += weights[j] = scores.s[indices[j]];
    }
    for (std::int64_t j = t * n.k; j < (t + 1) * n.k; ++j) {
      weights[j] = weights[j] / (n.rule.normalise ? sum : 1) * static_cast<S>(n.rule.scaling_factor);
    }
    if (!statistics) continue;
    for (std::int64_t e = 0; e < n.experts; ++e) {
      const double q = static_cast<double>(scores.q[e]);
      statistics[n.experts + e] += q;
      if (q > 0) statistics[2 * n.experts + 1] -= q * std::log(q);
    }
    statistics[2 * n.experts] += static_cast<double>(scores.log_sum) * static_cast<double>(scores.log_sum);
  }
  for (std::int64_t e = 0; statistics && e < n.experts; ++e) statistics[e] = counts[e];
}

// dx and dgate are added to. factors may be null.
template <class S>
void router_backward(const RouterSizes& n, const S* x, const S* gate, const std::int32_t* indices, const S* dweights,
                     const S* factors, S* dx, S* dgate) {
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    const RouterScores<S> scores = router_scores(n, x, gate, t);
    std::vector<S> ds(scores.s.size()), dlogits(scores.s.size());
    S sum = static_cast<S>(router_epsilon), weighted = 0, total = 0, mean = 0;
    for (std::int64_t j = t * n.k; j < (t + 1) * n.k; ++j) {
      sum += scores.s[indices[j]];
      weighted += dweights[j] * scores.s[indices[j]];
    }
    for (std::int64_t j = t * n.k; j < (t + 1) * n.k; ++j) {  // u = s / sum: du_j = (dw_j - sum_i dw_i u_i) / sum
      ds[indices[j]] += static_cast<S>(n.rule.scaling_factor) *
                        (n.rule.normalise ? (dweights[j] - weighted / sum) / sum : dweights[j]);
    }
    const bool softmax = n.rule.score == RouterRule::Score::softmax;
    for (std::int64_t e = 0; factors && e < n.experts; ++e) {
      total += scores.s[e];
      mean += factors[e] * scores.q[e];
    }
    for (std::int64_t e = 0; factors && e < n.experts; ++e) {
      ds[e] += softmax ? factors[e] : (factors[e] - mean) / (total + static_cast<S>(router_epsilon));
      dlogits[e] += factors[n.experts] * 2 * scores.log_sum * scores.softmax[e];
    }
    S projected = 0;
    for (std::int64_t e = 0; e < n.experts; ++e) projected += scores.s[e] * ds[e];
    for (std::int64_t e = 0; e < n.experts; ++e) {
      dlogits[e] += scores.s[e] * (softmax ? ds[e] - projected : ds[e] * (1 - scores.s[e]));
      for (std::int64_t j = 0; j < n.hidden; ++j) {
        dx[t * n.hidden + j] += dlogits[e] * gate[e * n.hidden + j];
        dgate[e * n.hidden + j] += dlogits[e] * x[t * n.hidden + j];
      }
    }
  }
}

}  // namespace ananke::reference
