#include "plugins/backend_host/operators/attention.h"

#include <algorithm>

#include "plugins/backend_host/operators/attention_parts.h"
#include "plugins/backend_host/operators/norm_math.h"
#include "runtime/base/error.h"
#include "runtime/operators/arguments.h"

namespace ananke::host {

AttentionSaved layout_saved(Carve& carve, const Attention::Sizes& s) {
  AttentionSaved saved{};
  saved.inverse_q = carve.take<float>(s.tokens * s.query_heads);
  saved.inverse_k = carve.take<float>(s.tokens * s.key_heads);
  saved.log_sum = carve.take<float>(s.tokens * s.query_heads);
  return saved;
}

AttentionScratch layout_scratch(Carve& carve, const Attention::Sizes& s, int threads) {
  const std::int64_t queries = s.tokens * s.query_heads * s.head_dim, keys = s.tokens * s.key_heads * s.head_dim;
  const std::int64_t tile = threads * std::min(queries_per_block, s.longest) * s.longest;
  const std::int64_t parts = (s.tokens + tokens_per_task - 1) / tokens_per_task;
  AttentionScratch scratch{};
  scratch.q = carve.take<float>(queries);
  scratch.k = carve.take<float>(keys);
  scratch.blocks = carve.take<QueryBlock>(s.tokens / queries_per_block + s.segments);
  scratch.first_block = carve.take<std::int64_t>(s.segments + 1);
  scratch.scores = carve.take<float>(tile);
  scratch.dscores = carve.take<float>(tile);
  scratch.delta = carve.take<float>(s.tokens * s.query_heads);
  scratch.dq = carve.take<float>(queries);
  scratch.dk = carve.take<float>(queries);
  scratch.dv = carve.take<float>(queries);
  scratch.norm_parts = carve.take<float>(parts * 2 * s.head_dim);
  return scratch;
}

std::int64_t make_blocks(const Attention::Inputs& in, const Attention::Sizes& n, const AttentionScratch& scratch) {
  const std::int32_t* offsets = in.segments.offsets.as<std::int32_t>();
  ANANKE_CHECK(offsets[0] == 0 && offsets[n.segments] == n.tokens, "attention: segments cover [{}, {}) of {} tokens",
               offsets[0], offsets[n.segments], n.tokens);
  std::int64_t blocks = 0;
  for (std::int64_t s = 0; s < n.segments; ++s) {
    const std::int64_t begin = offsets[s], end = offsets[s + 1];
    ANANKE_CHECK(begin < end && end - begin <= n.longest,
                 "attention: segment {} is [{}, {}), but segments have 1 to {} tokens", s, begin, end, n.longest);
    scratch.first_block[s] = blocks;
    for (std::int64_t t = begin; t < end; t += queries_per_block) {
      scratch.blocks[blocks++] = {static_cast<std::int32_t>(t),
                                  static_cast<std::int32_t>(std::min(t + queries_per_block, end)),
                                  static_cast<std::int32_t>(begin), static_cast<std::int32_t>(s)};
    }
  }
  scratch.first_block[n.segments] = blocks;
  return blocks;
}

namespace {

struct Heads {
  std::int64_t count, dim;
  const float *x, *weight;
  float *inverse, *out;
};

void norm_and_rope_token(const Heads& heads, double eps, const float* cosine, const float* sine, std::int64_t token,
                         bool fresh) {
  const std::int64_t half = heads.dim / 2;
  for (std::int64_t row = token * heads.count; row < (token + 1) * heads.count; ++row) {
    const float* x = heads.x + row * heads.dim;
    float* out = heads.out + row * heads.dim;
    if (fresh) heads.inverse[row] = inverse_rms(heads.dim, eps, x);
    const float inverse = heads.inverse[row];
#pragma omp simd
    for (std::int64_t i = 0; i < half; ++i) {
      const float a = x[i] * inverse * heads.weight[i], b = x[i + half] * inverse * heads.weight[i + half];
      out[i] = a * cosine[i] - b * sine[i];
      out[i + half] = b * cosine[i] + a * sine[i];
    }
  }
}

}  // namespace

void norm_and_rope(ThreadPool& pool, const Attention::Inputs& in, const Attention::Sizes& n,
                   const AttentionSaved& saved, const AttentionScratch& scratch, bool fresh) {
  const std::int64_t half = n.head_dim / 2, cached = in.cosine.shape[0];
  const std::int32_t* positions = in.positions.as<std::int32_t>();
  const Heads q{n.query_heads, n.head_dim, in.q.as<float>(), in.q_norm.as<float>(), saved.inverse_q, scratch.q};
  const Heads k{n.key_heads, n.head_dim, in.k.as<float>(), in.k_norm.as<float>(), saved.inverse_k, scratch.k};
  pool.run_blocks(n.tokens, tokens_per_task, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      ANANKE_CHECK(positions[t] >= 0 && positions[t] < cached, "attention: position {} of token {}, but {} are cached",
                   positions[t], t, cached);
      const float* cosine = in.cosine.as<float>() + positions[t] * half;
      const float* sine = in.sine.as<float>() + positions[t] * half;
      norm_and_rope_token(q, in.eps, cosine, sine, t, fresh);
      norm_and_rope_token(k, in.eps, cosine, sine, t, fresh);
    }
  });
}

std::size_t HostAttention::saved(const Sizes& s) const {
  Carve carve;
  layout_saved(carve, s);
  return carve.used();
}

std::size_t HostAttention::workspace(const Sizes& s) const {
  Carve carve;
  layout_scratch(carve, s, pool_.threads());
  return carve.used();
}

}  // namespace ananke::host
