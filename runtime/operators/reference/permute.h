// Reference of Permute (operators/permute.h): the definition in plain loops, for tests and finite differences.
#pragma once

#include <cstdint>

namespace ananke::reference {

struct PermuteSizes {
  std::int64_t tokens, hidden, experts, k;
};

// Rows ordered by expert, then by slot.
template <class S>
void permute_forward(const PermuteSizes& n, const S* x, const std::int32_t* indices, S* rows, std::int32_t* offsets,
                     std::int32_t* row_of_slot) {
  std::int32_t row = 0;
  for (std::int64_t e = 0; e < n.experts; ++e) {
    offsets[e] = row;
    for (std::int64_t slot = 0; slot < n.tokens * n.k; ++slot) {
      if (indices[slot] != e) continue;
      for (std::int64_t j = 0; j < n.hidden; ++j) rows[row * n.hidden + j] = x[slot / n.k * n.hidden + j];
      row_of_slot[slot] = row++;
    }
  }
  offsets[n.experts] = row;
}

template <class S>
void permute_backward(const PermuteSizes& n, const S* drows, const std::int32_t* row_of_slot, S* dx,
                      const S* d_row_weights = nullptr, S* dweights = nullptr) {
  for (std::int64_t slot = 0; dweights && slot < n.tokens * n.k; ++slot) {
    dweights[slot] = d_row_weights[row_of_slot[slot]];
  }
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    for (std::int64_t j = 0; j < n.hidden; ++j) {
      S sum = 0;
      for (std::int64_t slot = t * n.k; slot < (t + 1) * n.k; ++slot) sum += drows[row_of_slot[slot] * n.hidden + j];
      dx[t * n.hidden + j] = sum;
    }
  }
}

template <class S>
void combine_forward(const PermuteSizes& n, const S* rows, const std::int32_t* row_of_slot, const S* weights, S* y) {
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    for (std::int64_t j = 0; j < n.hidden; ++j) {
      S sum = 0;
      for (std::int64_t slot = t * n.k; slot < (t + 1) * n.k; ++slot) {
        sum += weights[slot] * rows[row_of_slot[slot] * n.hidden + j];
      }
      y[t * n.hidden + j] = sum;
    }
  }
}

template <class S>
void combine_backward(const PermuteSizes& n, const std::int32_t* row_of_slot, const S* weights, const S* dy,
                      S* d_weighted, S* row_weights) {
  for (std::int64_t slot = 0; slot < n.tokens * n.k; ++slot) {
    row_weights[row_of_slot[slot]] = weights[slot];
    for (std::int64_t j = 0; j < n.hidden; ++j) {
      d_weighted[row_of_slot[slot] * n.hidden + j] = dy[slot / n.k * n.hidden + j];
    }
  }
}

}  // namespace ananke::reference
