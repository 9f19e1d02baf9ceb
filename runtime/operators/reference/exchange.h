// Reference of Exchange (operators/exchange.h): the definition in plain loops, for tests and finite differences. A wire
// row is three arrays here: values, weights (or dweights) and indices.
#pragma once

#include <cstdint>

namespace ananke::reference {

inline std::int64_t rank_of_expert(std::int64_t expert, std::int64_t ranks, std::int64_t experts) {
  return expert * ranks / experts;
}

struct ExchangeSizes {
  std::int64_t tokens, hidden, experts, k, ranks;
};

// copies [T, R], counts [R, chunks].
inline void exchange_plan(const ExchangeSizes& n, const std::int32_t* indices, std::int64_t chunk_tokens,
                          std::int64_t chunks, std::int32_t* copies, std::int32_t* counts) {
  for (std::int64_t c = 0; c < chunks; ++c) {
    std::int32_t next = 0;
    for (std::int64_t p = 0; p < n.ranks; ++p) {
      const std::int32_t first = next;
      for (std::int64_t t = c * chunk_tokens; t < (c + 1) * chunk_tokens && t < n.tokens; ++t) {
        bool wanted = false;
        for (std::int64_t j = 0; j < n.k; ++j) {
          wanted = wanted || rank_of_expert(indices[t * n.k + j], n.ranks, n.experts) == p;
        }
        copies[t * n.ranks + p] = wanted ? next++ : -1;
      }
      counts[p * chunks + c] = next - first;
    }
  }
}

template <class S>
void exchange_pack(const ExchangeSizes& n, const S* x, const std::int32_t* copies, S* wire) {
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    for (std::int64_t p = 0; p < n.ranks; ++p) {
      const std::int32_t at = copies[t * n.ranks + p];
      for (std::int64_t i = 0; at >= 0 && i < n.hidden; ++i) wire[at * n.hidden + i] = x[t * n.hidden + i];
    }
  }
}

template <class S>
void exchange_collect(const ExchangeSizes& n, const S* wire, const std::int32_t* copies, S* y) {
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    for (std::int64_t i = 0; i < n.hidden; ++i) {
      S sum = 0;
      for (std::int64_t p = 0; p < n.ranks; ++p) {
        const std::int32_t at = copies[t * n.ranks + p];
        if (at >= 0) sum += wire[at * n.hidden + i];
      }
      y[t * n.hidden + i] = sum;
    }
  }
}

// `arrived`: copies in use, whose choices are indices [arrived, k]. Local experts [first, first + local).
// rows and slots [arrived, k] as Exchange::Copies.
inline void exchange_expand(const ExchangeSizes& n, std::int64_t arrived, const std::int32_t* indices,
                            std::int64_t first, std::int64_t local, std::int32_t* offsets, std::int32_t* rows,
                            std::int32_t* slots) {
  for (std::int64_t i = 0; i < arrived * n.k; ++i) rows[i] = slots[i] = -1;
  std::int32_t row = 0;
  for (std::int64_t e = 0; e < local; ++e) {
    offsets[e] = row;
    for (std::int64_t i = 0; i < arrived; ++i) {
      for (std::int64_t j = 0; j < n.k; ++j) {
        if (indices[i * n.k + j] != first + e) continue;
        std::int64_t m = i * n.k;
        while (rows[m] >= 0) ++m;
        slots[m] = static_cast<std::int32_t>(j);
        rows[m] = row++;
      }
    }
  }
  offsets[local] = row;
}

// wire[i] = sum of (weights ? weights[i, m] : 1) * by_row[rows[i, m]]
template <class S>
void exchange_combine(const ExchangeSizes& n, std::int64_t arrived, const S* by_row, const std::int32_t* rows,
                      const S* weights, S* wire) {
  for (std::int64_t i = 0; i < arrived; ++i) {
    for (std::int64_t h = 0; h < n.hidden; ++h) {
      S sum = 0;
      for (std::int64_t m = i * n.k; m < (i + 1) * n.k && rows[m] >= 0; ++m) {
        sum += (weights ? weights[m] : 1) * by_row[rows[m] * n.hidden + h];
      }
      wire[i * n.hidden + h] = sum;
    }
  }
}

template <class S>
void exchange_combine_backward(const ExchangeSizes& n, std::int64_t arrived, const S* dy, const std::int32_t* rows,
                               const S* weights, S* d_weighted, S* row_weights) {
  for (std::int64_t i = 0; i < arrived; ++i) {
    for (std::int64_t m = i * n.k; m < (i + 1) * n.k && rows[m] >= 0; ++m) {
      row_weights[rows[m]] = weights[m];
      for (std::int64_t h = 0; h < n.hidden; ++h) d_weighted[rows[m] * n.hidden + h] = dy[i * n.hidden + h];
    }
  }
}

// What travels back beside the sums of d_rows: dweights [arrived, k].
template <class S>
void exchange_dweights(const ExchangeSizes& n, std::int64_t arrived, const S* d_row_weights, const std::int32_t* rows,
                       const std::int32_t* slots, S* dweights) {
  for (std::int64_t i = 0; i < arrived; ++i) {
    for (std::int64_t j = 0; j < n.k; ++j) dweights[i * n.k + j] = 0;
    for (std::int64_t m = i * n.k; m < (i + 1) * n.k && rows[m] >= 0; ++m) {
      dweights[i * n.k + slots[m]] = d_row_weights[rows[m]];
    }
  }
}

}  // namespace ananke::reference
