// Reference of Embedding (operators/embedding.h): the definition in plain loops, for tests and finite differences.
#pragma once

#include <cstdint>

namespace ananke::reference {

// y[T, H] = table[tokens[T], H]
template <class S>
void embedding_forward(std::int64_t tokens, std::int64_t hidden, const std::int32_t* ids, const S* table, S* y) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < hidden; ++j) y[t * hidden + j] = table[ids[t] * hidden + j];
  }
}

// dtable[tokens[t]] += dy[t], in the order of t
template <class S>
void embedding_backward(std::int64_t tokens, std::int64_t hidden, const std::int32_t* ids, const S* dy, S* dtable) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < hidden; ++j) dtable[ids[t] * hidden + j] += dy[t * hidden + j];
  }
}

}  // namespace ananke::reference
