// Reference of HeadLoss (operators/head_loss.h): the definition in plain loops, for tests and finite differences.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/operators/reference/linear.h"

namespace ananke::reference {

struct HeadSizes {
  std::int64_t tokens, hidden, vocabulary;
};

// loss[0] += the sum. dx (replaced) and dweight (added to) are gradients of scale * loss; null: not wanted. So logits.
template <class S>
void head_loss(const HeadSizes& n, const S* x, const S* weight, const std::int32_t* targets, S scale, double* loss,
               S* dx, S* dweight, S* logits) {
  std::vector<S> p(static_cast<std::size_t>(n.vocabulary));
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    linear_forward(1, n.hidden, n.vocabulary, x + t * n.hidden, weight, p.data());
    for (std::int64_t v = 0; logits && v < n.vocabulary; ++v) logits[t * n.vocabulary + v] = p[v];
    for (std::int64_t j = 0; dx && j < n.hidden; ++j) dx[t * n.hidden + j] = 0;
    if (targets[t] < 0) continue;
    S largest = p[0], sum = 0;
    for (S value : p) largest = value > largest ? value : largest;
    for (S value : p) sum += std::exp(value - largest);
    *loss += static_cast<double>(largest) + std::log(static_cast<double>(sum)) - static_cast<double>(p[targets[t]]);
    for (std::int64_t v = 0; v < n.vocabulary; ++v) {
      p[v] = scale * (std::exp(p[v] - largest) / sum - (v == targets[t] ? S{1} : S{0}));
    }
    if (dx || dweight) {
      linear_backward(1, n.hidden, n.vocabulary, x + t * n.hidden, weight, p.data(), dx ? dx + t * n.hidden : nullptr,
                      false, dweight);
    }
  }
}

}  // namespace ananke::reference
