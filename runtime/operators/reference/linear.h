// Reference of Linear (operators/linear.h): the definition in plain loops, for tests and finite differences.
#pragma once

#include <cstdint>

namespace ananke::reference {

// y[T, O] = x[T, I] weight[O, I]^T
template <class S>
void linear_forward(std::int64_t tokens, std::int64_t in, std::int64_t out, const S* x, const S* weight, S* y) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t o = 0; o < out; ++o) {
      S sum = 0;
      for (std::int64_t i = 0; i < in; ++i) sum += x[t * in + i] * weight[o * in + i];
      y[t * out + o] = sum;
    }
  }
}

// dx[T, I] = dy weight (added when `add_dx`); dweight[O, I] += dy^T x. Either may be null: not wanted.
template <class S>
void linear_backward(std::int64_t tokens, std::int64_t in, std::int64_t out, const S* x, const S* weight, const S* dy,
                     S* dx, bool add_dx, S* dweight) {
  for (std::int64_t t = 0; dx && t < tokens; ++t) {
    for (std::int64_t i = 0; i < in; ++i) {
      S sum = 0;
      for (std::int64_t o = 0; o < out; ++o) sum += dy[t * out + o] * weight[o * in + i];
      dx[t * in + i] = add_dx ? dx[t * in + i] + sum : sum;
    }
  }
  for (std::int64_t o = 0; dweight && o < out; ++o) {
    for (std::int64_t i = 0; i < in; ++i) {
      S sum = 0;
      for (std::int64_t t = 0; t < tokens; ++t) sum += dy[t * out + o] * x[t * in + i];
      dweight[o * in + i] += sum;
    }
  }
}

}  // namespace ananke::reference
