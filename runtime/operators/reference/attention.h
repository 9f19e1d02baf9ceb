// Reference of Attention (operators/attention.h): the definition in plain loops, for tests and finite differences.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/operators/reference/add_rms_norm.h"

namespace ananke::reference {

template <class S>
struct AttentionInputs {
  std::int64_t tokens, query_heads, key_heads, head_dim;
  const S *q, *k, *v;             // [T, Hq, D], [T, Hkv, D] twice
  const S *q_norm, *k_norm;       // [D]
  const S *cosine, *sine;         // [P, D / 2]
  const std::int32_t* positions;  // [T]
  const std::int32_t* offsets;    // [segments + 1]
  std::int64_t segments;
  double eps;
};

// Element i of the first half turns with element i of the second half: (a, b) -> (a c - b s, b c + a s).
template <class S>
void rope_row(std::int64_t head_dim, const S* cosine, const S* sine, S* x) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const S a = x[i], b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

// rope(rms_norm(x) * weight) of every head of every token
template <class S>
std::vector<S> norm_and_rope(const AttentionInputs<S>& in, std::int64_t heads, const S* x, const S* weight) {
  const std::int64_t dim = in.head_dim, half = dim / 2;
  std::vector<S> result(static_cast<std::size_t>(in.tokens * heads * dim));
  for (std::int64_t t = 0; t < in.tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      S* row = result.data() + (t * heads + h) * dim;
      rms_norm_row(dim, in.eps, x + (t * heads + h) * dim, weight, row);
      rope_row(dim, in.cosine + in.positions[t] * half, in.sine + in.positions[t] * half, row);
    }
  }
  return result;
}

// Undoes norm_and_rope for the gradient: the rotation's transpose is the rotation by the negative angle.
template <class S>
void norm_and_rope_backward(const AttentionInputs<S>& in, std::int64_t heads, const S* x, const S* weight,
                            std::vector<S> d_rotated, S* dx, S* dweight) {
  const std::int64_t dim = in.head_dim, half = dim / 2;
  for (std::int64_t t = 0; t < in.tokens; ++t) {
    std::vector<S> minus_sine(in.sine + in.positions[t] * half, in.sine + (in.positions[t] + 1) * half);
    for (S& s : minus_sine) s = -s;
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t row = (t * heads + h) * dim;
      rope_row(dim, in.cosine + in.positions[t] * half, minus_sine.data(), d_rotated.data() + row);
      for (std::int64_t i = 0; i < dim; ++i) dx[row + i] = 0;
      rms_norm_row_backward(dim, in.eps, x + row, weight, d_rotated.data() + row, dx + row, dweight);
    }
  }
}

// Softmax weights of query (t, h) over the keys begin..t of its segment.
template <class S>
std::vector<S> attention_weights(const AttentionInputs<S>& in, const std::vector<S>& q, const std::vector<S>& k,
                                 std::int64_t t, std::int64_t h, std::int64_t begin) {
  const std::int64_t dim = in.head_dim, kv = h / (in.query_heads / in.key_heads);
  const S scale = 1 / std::sqrt(static_cast<S>(dim));
  std::vector<S> p(static_cast<std::size_t>(t - begin + 1));
  for (std::int64_t u = begin; u <= t; ++u) {
    S dot = 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      dot += q[(t * in.query_heads + h) * dim + i] * k[(u * in.key_heads + kv) * dim + i];
    }
    p[u - begin] = dot * scale;
  }
  S largest = p[0], sum = 0;
  for (S value : p) largest = value > largest ? value : largest;
  for (S& value : p) sum += value = std::exp(value - largest);
  for (S& value : p) value /= sum;
  return p;
}

template <class S>
void attention_forward(const AttentionInputs<S>& in, S* o) {
  const std::int64_t dim = in.head_dim, heads = in.query_heads, group = heads / in.key_heads;
  const std::vector<S> q = norm_and_rope(in, heads, in.q, in.q_norm);
  const std::vector<S> k = norm_and_rope(in, in.key_heads, in.k, in.k_norm);
  for (std::int64_t s = 0; s < in.segments; ++s) {
    for (std::int64_t t = in.offsets[s]; t < in.offsets[s + 1]; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::vector<S> p = attention_weights(in, q, k, t, h, in.offsets[s]);
        for (std::int64_t i = 0; i < dim; ++i) {
          S sum = 0;
          for (std::int64_t u = in.offsets[s]; u <= t; ++u) {
            sum += p[u - in.offsets[s]] * in.v[(u * in.key_heads + h / group) * dim + i];
          }
          o[(t * heads + h) * dim + i] = sum;
        }
      }
    }
  }
}

template <class S>
struct AttentionGradients {
  S *dq, *dk, *dv;       // replaced
  S *dq_norm, *dk_norm;  // added to
};

// Gradients of one query's attention: d_o -> d of rotated q and k, and of v (all added to).
template <class S>
void attention_query_backward(const AttentionInputs<S>& in, const std::vector<S>& q, const std::vector<S>& k,
                              const S* d_o, std::int64_t t, std::int64_t h, std::int64_t begin, std::vector<S>& dq,
                              std::vector<S>& dk, S* dv) {
  const std::int64_t dim = in.head_dim, kv = h / (in.query_heads / in.key_heads), row = (t * in.query_heads + h) * dim;
  const S scale = 1 / std::sqrt(static_cast<S>(dim));
  const std::vector<S> p = attention_weights(in, q, k, t, h, begin);
  std::vector<S> dp(p.size());
  S mean = 0;
  for (std::int64_t u = begin; u <= t; ++u) {
    const std::int64_t key = (u * in.key_heads + kv) * dim;
    for (std::int64_t i = 0; i < dim; ++i) {
      dp[u - begin] += d_o[row + i] * in.v[key + i];
      dv[key + i] += p[u - begin] * d_o[row + i];
    }
    mean += p[u - begin] * dp[u - begin];
  }
  for (std::int64_t u = begin; u <= t; ++u) {
    const std::int64_t key = (u * in.key_heads + kv) * dim;
    const S ds = p[u - begin] * (dp[u - begin] - mean) * scale;
    for (std::int64_t i = 0; i < dim; ++i) {
      dq[row + i] += ds * k[key + i];
      dk[key + i] += ds * q[row + i];
    }
  }
}

template <class S>
void attention_backward(const AttentionInputs<S>& in, const S* d_o, const AttentionGradients<S>& out) {
  const std::vector<S> q = norm_and_rope(in, in.query_heads, in.q, in.q_norm);
  const std::vector<S> k = norm_and_rope(in, in.key_heads, in.k, in.k_norm);
  std::vector<S> dq(q.size()), dk(k.size());
  for (std::size_t i = 0; i < k.size(); ++i) out.dv[i] = 0;
  for (std::int64_t s = 0; s < in.segments; ++s) {
    for (std::int64_t t = in.offsets[s]; t < in.offsets[s + 1]; ++t) {
      for (std::int64_t h = 0; h < in.query_heads; ++h) {
        attention_query_backward(in, q, k, d_o, t, h, in.offsets[s], dq, dk, out.dv);
      }
    }
  }
  norm_and_rope_backward(in, in.query_heads, in.q, in.q_norm, std::move(dq), out.dq, out.dq_norm);
  norm_and_rope_backward(in, in.key_heads, in.k, in.k_norm, std::move(dk), out.dk, out.dk_norm);
}

}  // namespace ananke::reference
