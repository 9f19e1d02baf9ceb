// Reference of Elementwise (operators/elementwise.h): the definition in plain loops.
#pragma once

#include <cmath>
#include <cstdint>

namespace ananke::reference {

template <class S>
void add(std::int64_t n, const S* a, const S* b, S* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

template <class S>
void square_sum(std::int64_t n, const S* x, double* sum) {
  for (std::int64_t i = 0; i < n; ++i) *sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
}

inline void clip(double square_sum, double loss, double clip_norm, float* scale, std::int32_t* finite) {
  const double norm = std::sqrt(square_sum);
  *finite = std::isfinite(norm) && std::isfinite(loss) ? 1 : 0;
  *scale = clip_norm > 0 && norm > clip_norm ? static_cast<float>(clip_norm / (norm + 1e-6)) : 1.0f;
}

}  // namespace ananke::reference
