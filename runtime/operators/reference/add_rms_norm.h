// Reference of AddRmsNorm (operators/add_rms_norm.h): the definition in plain loops, for tests and finite differences.
#pragma once

#include <cmath>
#include <cstdint>

namespace ananke::reference {

// y[n] = x / sqrt(mean(x^2) + eps) * weight
template <class S>
void rms_norm_row(std::int64_t width, double eps, const S* x, const S* weight, S* y) {
  S sum = 0;
  for (std::int64_t j = 0; j < width; ++j) sum += x[j] * x[j];
  const S inverse = 1 / std::sqrt(sum / static_cast<S>(width) + static_cast<S>(eps));
  for (std::int64_t j = 0; j < width; ++j) y[j] = x[j] * inverse * weight[j];
}

// With r = 1 / sqrt(mean(x^2) + eps):  dx = r (weight dy) - r^3 x mean(weight dy x), dweight += dy x r.
// dx is added to.
template <class S>
void rms_norm_row_backward(std::int64_t width, double eps, const S* x, const S* weight, const S* dy, S* dx,
                           S* dweight) {
  S sum = 0, product = 0;
  for (std::int64_t j = 0; j < width; ++j) sum += x[j] * x[j];
  for (std::int64_t j = 0; j < width; ++j) product += weight[j] * dy[j] * x[j];
  const S r = 1 / std::sqrt(sum / static_cast<S>(width) + static_cast<S>(eps));
  for (std::int64_t j = 0; j < width; ++j) {
    dx[j] += r * weight[j] * dy[j] - r * r * r * x[j] * (product / static_cast<S>(width));
    dweight[j] += dy[j] * x[j] * r;
  }
}

// h = x + delta (delta null: h = x), y = rms_norm(h). h may be x.
template <class S>
void add_rms_norm_forward(std::int64_t rows, std::int64_t width, double eps, const S* x, const S* delta,
                          const S* weight, S* h, S* y) {
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t j = t * width; j < (t + 1) * width; ++j) h[j] = delta ? x[j] + delta[j] : x[j];
    rms_norm_row(width, eps, h + t * width, weight, y + t * width);
  }
}

// dh = dh_in (null: 0) + the norm's part; dh may be dh_in. dweight is added to.
template <class S>
void add_rms_norm_backward(std::int64_t rows, std::int64_t width, double eps, const S* h, const S* weight, const S* dy,
                           const S* dh_in, S* dh, S* dweight) {
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t j = t * width; j < (t + 1) * width; ++j) dh[j] = dh_in ? dh_in[j] : 0;
    rms_norm_row_backward(width, eps, h + t * width, weight, dy + t * width, dh + t * width, dweight);
  }
}

}  // namespace ananke::reference
