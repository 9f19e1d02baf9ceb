// Reference of GroupedMlp (operators/grouped_mlp.h): the definition in plain loops, for tests and finite differences.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/operators/reference/linear.h"

namespace ananke::reference {

template <class S>
struct MlpWeights {
  S *gate, *up;  // [F, H] of group 0
  S* down;       // [H, F] of group 0
  std::int64_t gate_stride, up_stride, down_stride;
};

struct MlpSizes {
  std::int64_t hidden, width, groups;
};

template <class S>
S silu(S z) {
  return z / (1 + std::exp(-z));
}

template <class S>
void grouped_mlp_forward(const MlpSizes& n, const S* x, const std::int32_t* offsets, const MlpWeights<const S>& w,
                         S* y) {
  for (std::int64_t g = 0; g < n.groups; ++g) {
    const std::int64_t rows = offsets[g + 1] - offsets[g], first = offsets[g];
    std::vector<S> a(static_cast<std::size_t>(rows * n.width)), b(a.size());
    linear_forward(rows, n.hidden, n.width, x + first * n.hidden, w.gate + g * w.gate_stride, a.data());
    linear_forward(rows, n.hidden, n.width, x + first * n.hidden, w.up + g * w.up_stride, b.data());
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = silu(a[i]) * b[i];
    linear_forward(rows, n.width, n.hidden, a.data(), w.down + g * w.down_stride, y + first * n.hidden);
  }
}

// dx and d_row_weights are replaced, `gradient` added to. With row_weights, dy is the gradient of row_weight x y.
template <class S>
void grouped_mlp_backward(const MlpSizes& n, const S* x, const std::int32_t* offsets, const MlpWeights<const S>& w,
                          const S* dy, S* dx, const MlpWeights<S>& gradient, const S* row_weights = nullptr,
                          S* d_row_weights = nullptr) {
  for (std::int64_t g = 0; g < n.groups; ++g) {
    const std::int64_t rows = offsets[g + 1] - offsets[g], first = offsets[g];
    const S* xs = x + first * n.hidden;
    std::vector<S> a(static_cast<std::size_t>(rows * n.width)), b(a.size()), h(a.size()), dh(a.size());
    std::vector<S> own(dy + first * n.hidden, dy + (first + rows) * n.hidden), y(own.size());
    linear_forward(rows, n.hidden, n.width, xs, w.gate + g * w.gate_stride, a.data());
    linear_forward(rows, n.hidden, n.width, xs, w.up + g * w.up_stride, b.data());
    for (std::size_t i = 0; i < a.size(); ++i) h[i] = silu(a[i]) * b[i];
    if (row_weights) {
      linear_forward(rows, n.width, n.hidden, h.data(), w.down + g * w.down_stride, y.data());
      for (std::int64_t r = 0; r < rows; ++r) {
        d_row_weights[first + r] = 0;
        for (std::int64_t j = r * n.hidden; j < (r + 1) * n.hidden; ++j) {
          const auto at = static_cast<std::size_t>(j);
          d_row_weights[first + r] += own[at] * y[at];
          own[at] *= row_weights[first + r];
        }
      }
    }
    linear_backward(rows, n.width, n.hidden, h.data(), w.down + g * w.down_stride, own.data(), dh.data(), false,
                    gradient.down + g * gradient.down_stride);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const S sigmoid = 1 / (1 + std::exp(-a[i])), d = dh[i];
      dh[i] = d * b[i] * sigmoid * (1 + a[i] * (1 - sigmoid));  // of gate's output
      b[i] = d * silu(a[i]);                                    // of up's output
    }
    linear_backward(rows, n.hidden, n.width, xs, w.gate + g * w.gate_stride, dh.data(), dx + first * n.hidden, false,
                    gradient.gate + g * gradient.gate_stride);
    linear_backward(rows, n.hidden, n.width, xs, w.up + g * w.up_stride, b.data(), dx + first * n.hidden, true,
                    gradient.up + g * gradient.up_stride);
  }
}

}  // namespace ananke::reference
