// Reference of Momentum (operators/momentum.h): the definition in plain loops.
#pragma once

#include <cstdint>

namespace ananke::reference {

template <class S>
void momentum_accumulate(std::int64_t n, double mu, bool nesterov, const S* gradient, S scale, bool finite, S* momentum,
                         S* out) {
  for (std::int64_t i = 0; finite && i < n; ++i) {
    const S g = gradient[i] * scale;
    momentum[i] += static_cast<S>(1 - mu) * (g - momentum[i]);
    out[i] = nesterov ? g + static_cast<S>(mu) * (momentum[i] - g) : momentum[i];
  }
}

template <class S>
void momentum_apply(std::int64_t n, double keep, double rate, const S* direction, bool finite, S* weight) {
  for (std::int64_t i = 0; finite && i < n; ++i) {
    weight[i] = weight[i] * static_cast<S>(keep) - static_cast<S>(rate) * direction[i];
  }
}

}  // namespace ananke::reference
