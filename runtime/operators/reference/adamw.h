// Reference of AdamWUpdate (operators/adamw.h): the definition in plain loops.
#pragma once

#include <cmath>
#include <cstdint>

namespace ananke::reference {

struct AdamWHyper {
  double lr, beta1, beta2, eps, weight_decay;
  std::uint64_t step;
};

template <class S>
void adamw(const AdamWHyper& a, std::int64_t n, const S* gradient, S scale, bool finite, S* weight, S* exp_avg,
           S* exp_avg_sq) {
  if (!finite) return;
  const double correction1 = 1 - std::pow(a.beta1, static_cast<double>(a.step));
  const double correction2 = std::sqrt(1 - std::pow(a.beta2, static_cast<double>(a.step)));
  for (std::int64_t i = 0; i < n; ++i) {
    const S g = gradient[i] * scale;
    weight[i] *= static_cast<S>(1 - a.lr * a.weight_decay);
    exp_avg[i] += static_cast<S>(1 - a.beta1) * (g - exp_avg[i]);
    exp_avg_sq[i] = static_cast<S>(a.beta2) * exp_avg_sq[i] + static_cast<S>(1 - a.beta2) * g * g;
    const S denominator = std::sqrt(exp_avg_sq[i]) / static_cast<S>(correction2) + static_cast<S>(a.eps);
    weight[i] -= static_cast<S>(a.lr / correction1) * (exp_avg[i] / denominator);
  }
}

}  // namespace ananke::reference
