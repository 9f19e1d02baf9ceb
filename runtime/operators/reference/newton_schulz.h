// Reference of NewtonSchulz (operators/newton_schulz.h): the definition in plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace ananke::reference {

struct NewtonSchulzHyper {
  int steps;
  double a, b, c, eps;
};

// matrix[rows, columns], in place. `round` is applied to the matrix, its norm and what each product gives.
template <class S, class Round>
void newton_schulz(const NewtonSchulzHyper& h, std::int64_t rows, std::int64_t columns, S* matrix, Round round) {
  const bool transposed = rows > columns;
  const std::int64_t s = transposed ? columns : rows, l = transposed ? rows : columns;
  const auto element = [&](std::int64_t i, std::int64_t j) -> S& {
    return matrix[transposed ? j * columns + i : i * columns + j];
  };
  S square = 0;
  for (std::int64_t i = 0; i < s; ++i) {
    for (std::int64_t j = 0; j < l; ++j) {
      element(i, j) = round(element(i, j));
      square += element(i, j) * element(i, j);
    }
  }
  const S divisor = std::max(round(std::sqrt(square)), static_cast<S>(h.eps));
  std::vector<S> x(static_cast<std::size_t>(s * l)), y(x.size()), a(static_cast<std::size_t>(s * s)), b(a.size());
  const auto at = [](std::vector<S>& m, std::int64_t width, std::int64_t i, std::int64_t j) -> S& {
    return m[static_cast<std::size_t>(i * width + j)];
  };
  for (std::int64_t i = 0; i < s; ++i) {
    for (std::int64_t j = 0; j < l; ++j) at(x, l, i, j) = round(element(i, j) / divisor);
  }
  for (int step = 0; step < h.steps; ++step) {
    for (std::int64_t i = 0; i < s; ++i) {
      for (std::int64_t j = 0; j < s; ++j) {
        S sum = 0;
        for (std::int64_t k = 0; k < l; ++k) sum += at(x, l, i, k) * at(x, l, j, k);
        at(a, s, i, j) = round(sum);
      }
    }
    for (std::int64_t i = 0; i < s; ++i) {
      for (std::int64_t j = 0; j < s; ++j) {
        S sum = 0;
        for (std::int64_t k = 0; k < s; ++k) sum += at(a, s, i, k) * at(a, s, k, j);
        at(b, s, i, j) = round(static_cast<S>(h.b) * at(a, s, i, j) + static_cast<S>(h.c) * sum);
      }
    }
    for (std::int64_t i = 0; i < s; ++i) {
      for (std::int64_t j = 0; j < l; ++j) {
        S sum = 0;
        for (std::int64_t k = 0; k < s; ++k) sum += at(b, s, i, k) * at(x, l, k, j);
        at(y, l, i, j) = round(static_cast<S>(h.a) * at(x, l, i, j) + sum);
      }
    }
    x.swap(y);
  }
  for (std::int64_t i = 0; i < s; ++i) {
    for (std::int64_t j = 0; j < l; ++j) element(i, j) = at(x, l, i, j);
  }
}

template <class S>
void newton_schulz(const NewtonSchulzHyper& h, std::int64_t rows, std::int64_t columns, S* matrix) {
  newton_schulz(h, rows, columns, matrix, [](S value) { return value; });
}

}  // namespace ananke::reference
