// Reference of RouterBalance (operators/router_balance.h): the definition in plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace ananke::reference {

struct BalanceSizes {
  std::int64_t layers, experts;
  std::int64_t row() const { return 2 * experts + 2; }
};

inline void balance_collect(const BalanceSizes& n, const double* statistics, std::int64_t tokens, std::int64_t targets,
                            double* total) {
  for (std::int64_t e = 0; e < n.experts; ++e) {
    total[e] = 0;
    for (std::int64_t l = 0; l < n.layers; ++l) total[e] += statistics[l * n.row() + e];
  }
  total[n.experts] = static_cast<double>(tokens);
  total[n.experts + 1] = static_cast<double>(targets);
}

// losses are added to.
inline void balance_factors(const BalanceSizes& n, const double* statistics, const double* total, double scale,
                            double auxiliary_coefficient, double z_coefficient, double* factors, double* losses) {
  const double tokens = total[n.experts], rows = tokens * static_cast<double>(n.layers);
  const double share = total[n.experts + 1] * scale;
  for (std::int64_t e = 0; e <= n.experts; ++e) factors[e] = 0;
  if (rows == 0) return;
  for (std::int64_t e = 0; e < n.experts; ++e) {
    factors[e] = auxiliary_coefficient * static_cast<double>(n.experts) * (total[e] / rows) / rows * share;
    for (std::int64_t l = 0; l < n.layers; ++l) losses[0] += factors[e] * statistics[l * n.row() + n.experts + e];
  }
  factors[n.experts] = z_coefficient / tokens * share;
  for (std::int64_t l = 0; l < n.layers; ++l) losses[1] += factors[n.experts] * statistics[l * n.row() + 2 * n.experts];
}

inline void balance_load(const BalanceSizes& n, std::int64_t microbatches, const double* statistics, double* load) {
  for (std::int64_t l = 0; l < n.layers; ++l) {
    for (std::int64_t i = 0; i <= n.experts; ++i) {
      double sum = 0;
      for (std::int64_t m = 0; m < microbatches; ++m) {
        sum += statistics[(m * n.layers + l) * n.row() + (i < n.experts ? i : 2 * n.experts + 1)];
      }
      load[l * (n.experts + 1) + i] = sum;
    }
  }
}

inline void balance_update_bias(const BalanceSizes& n, const double* load, const float* rate, bool finite,
                                float* bias) {
  for (std::int64_t l = 0; finite && l < n.layers; ++l) {
    const double* counts = load + l * (n.experts + 1);
    double sum = 0, shift = 0;
    for (std::int64_t e = 0; e < n.experts; ++e) sum += counts[e];
    const auto delta = [&](std::int64_t e) {  // whole numbers are compared: exact
      const double scaled = counts[e] * static_cast<double>(n.experts);
      return static_cast<double>(rate[l]) * static_cast<double>((sum > scaled) - (sum < scaled));
    };
    for (std::int64_t e = 0; e < n.experts; ++e) shift += delta(e) / static_cast<double>(n.experts);
    for (std::int64_t e = 0; e < n.experts; ++e) {
      float& value = bias[l * n.experts + e];
      value = static_cast<float>(static_cast<double>(value) + (delta(e) - shift));
    }
  }
}

inline void balance_summarise(const BalanceSizes& n, const double* load, const float* bias, double* summary) {
  for (std::int64_t l = 0; l < n.layers; ++l) {
    const double* counts = load + l * (n.experts + 1);
    double* out = summary + l * 6;
    out[0] = *std::min_element(counts, counts + n.experts);
    out[1] = *std::max_element(counts, counts + n.experts);
    out[2] = 0;
    for (std::int64_t e = 0; e < n.experts; ++e) out[2] += counts[e];
    out[3] = counts[n.experts];
    out[4] = bias ? static_cast<double>(*std::min_element(bias + l * n.experts, bias + (l + 1) * n.experts)) : 0.0;
    out[5] = bias ? static_cast<double>(*std::max_element(bias + l * n.experts, bias + (l + 1) * n.experts)) : 0.0;
  }
}

}  // namespace ananke::reference
