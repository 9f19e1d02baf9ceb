#include <cmath>
#include <cstring>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/attention.h"
#include "plugins/backend_host/operators/attention_parts.h"
#include "plugins/backend_host/operators/gemm.h"
#include "plugins/backend_host/operators/norm_math.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/validate.h"

namespace ananke::host {
namespace {

// One pass over one call's data; what all functions of it look at.
struct Pass {
  const Attention::Backward& a;
  Attention::Sizes n;
  AttentionSaved saved;
  AttentionScratch scratch;
  std::int64_t q_stride() const { return n.query_heads * n.head_dim; }
  std::int64_t k_stride() const { return n.key_heads * n.head_dim; }
  std::int64_t group() const { return n.query_heads / n.key_heads; }
};

// scores -> p, dscores (d_o v^T) -> gradient of the scaled scores:  p * (dp - delta) / sqrt(D); 0 where masked.
void softmax_backward(const Pass& pass, const QueryBlock& block, std::int64_t head, float* scores, float* dscores) {
  const std::int64_t rows = block.end - block.begin, keys = block.end - block.first_key;
  const float scale = 1 / std::sqrt(static_cast<float>(pass.n.head_dim));
  for (std::int64_t i = 0; i < rows; ++i) {
    float *p = scores + i * keys, *ds = dscores + i * keys;
    const std::int64_t seen = keys - rows + i + 1, row = (block.begin + i) * pass.n.query_heads + head;
    const float log_sum = pass.saved.log_sum[row], delta = pass.scratch.delta[row];
#pragma omp simd
    for (std::int64_t j = 0; j < seen; ++j) {
      p[j] = exp_of(p[j] - log_sum);
      ds[j] = p[j] * (ds[j] - delta) * scale;
    }
    const std::size_t masked = static_cast<std::size_t>(keys - seen) * sizeof(float);
    std::memset(p + seen, 0, masked);
    std::memset(ds + seen, 0, masked);
  }
}

// Gradients of rotated q of one block, and the block's part of those of rotated k and v. The segment's last block,
// which sees all keys, comes first and writes; the others add.
void backward_block(const Pass& pass, const QueryBlock& block, std::int64_t head, bool writes, float* scores,
                    float* dscores) {
  const AttentionScratch& scratch = pass.scratch;
  const std::int64_t dim = pass.n.head_dim, rows = block.end - block.begin, keys = block.end - block.first_key;
  const std::int64_t qs = pass.q_stride(), ks = pass.k_stride();
  const std::int64_t queries = block.begin * qs + head * dim;
  const std::int64_t shared_keys = block.first_key * ks + head / pass.group() * dim;
  const std::int64_t own_keys = block.first_key * qs + head * dim;
  const Factor q{scratch.q + queries, qs}, k{scratch.k + shared_keys, ks};
  const Factor d_o{pass.a.d_o.as<float>() + queries, qs}, v{pass.a.in.v.as<float>() + shared_keys, ks};
  gemm(rows, keys, dim, 1 / std::sqrt(static_cast<float>(dim)), q, {k.data, ks, true}, 0, scores, keys);
  gemm(rows, keys, dim, 1, d_o, {v.data, ks, true}, 0, dscores, keys);
  softmax_backward(pass, block, head, scores, dscores);
  const float beta = writes ? 0 : 1;
  gemm(rows, dim, keys, 1, {dscores, keys}, k, 0, scratch.dq + queries, qs);
  gemm(keys, dim, rows, 1, {dscores, keys, true}, q, beta, scratch.dk + own_keys, qs);
  gemm(keys, dim, rows, 1, {scores, keys, true}, d_o, beta, scratch.dv + own_keys, qs);
}

void backward_segments(ThreadPool& pool, const Pass& pass) {
  const Attention::Sizes& n = pass.n;
  const AttentionScratch& scratch = pass.scratch;
  const std::int64_t tile = std::min(queries_per_block, n.longest) * n.longest;
  pool.run(n.segments * n.query_heads, [&](std::int64_t task, int worker) {
    const std::int64_t segment = task / n.query_heads, head = task % n.query_heads;
    const std::int64_t first = scratch.first_block[segment], last = scratch.first_block[segment + 1] - 1;
    for (std::int64_t block = last; block >= first; --block) {
      backward_block(pass, scratch.blocks[block], head, block == last, scratch.scores + worker * tile,
                     scratch.dscores + worker * tile);
    }
  });
}

// Turns the rotated gradient of one head back (rotation by the negative angle), in place.
void rope_backward(std::int64_t half, const float* cosine, const float* sine, float* d) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = d[i], b = d[i + half];
    d[i] = a * cosine[i] + b * sine[i];
    d[i + half] = b * cosine[i] - a * sine[i];
  }
}

// Sum over the query heads of one key head of their parts, in the order of the heads: to `out`, which may be the first.
void sum_group(std::int64_t group, std::int64_t dim, const float* parts, float* out) {
  if (out != parts) std::memcpy(out, parts, static_cast<std::size_t>(dim) * sizeof(float));
  for (std::int64_t h = 1; h < group; ++h) {
#pragma omp simd
    for (std::int64_t i = 0; i < dim; ++i) out[i] += parts[h * dim + i];
  }
}

void finish_token(const Pass& pass, std::int64_t t, float* dq_norm, float* dk_norm) {
  const Attention::Inputs& in = pass.a.in;
  const std::int64_t dim = pass.n.head_dim, half = dim / 2, group = pass.group();
  const std::int64_t at = in.positions.as<std::int32_t>()[t] * half;
  const float *cosine = in.cosine.as<float>() + at, *sine = in.sine.as<float>() + at;
  for (std::int64_t row = t * pass.n.query_heads; row < (t + 1) * pass.n.query_heads; ++row) {
    float* d = pass.scratch.dq + row * dim;
    rope_backward(half, cosine, sine, d);
    normalise_row_backward(dim, pass.saved.inverse_q[row], in.q.as<float>() + row * dim, in.q_norm.as<float>(), d,
                           nullptr, pass.a.dq.as<float>() + row * dim, dq_norm);
  }
  for (std::int64_t row = t * pass.n.key_heads; row < (t + 1) * pass.n.key_heads; ++row) {
    float* d = pass.scratch.dk + row * group * dim;
    sum_group(group, dim, d, d);
    sum_group(group, dim, pass.scratch.dv + row * group * dim, pass.a.dv.as<float>() + row * dim);
    rope_backward(half, cosine, sine, d);
    normalise_row_backward(dim, pass.saved.inverse_k[row], in.k.as<float>() + row * dim, in.k_norm.as<float>(), d,
                           nullptr, pass.a.dk.as<float>() + row * dim, dk_norm);
  }
}

void run_backward(ThreadPool& pool, const Pass& pass) {
  const Attention::Sizes& n = pass.n;
  const std::int64_t dim = n.head_dim;
  make_blocks(pass.a.in, n, pass.scratch);
  norm_and_rope(pool, pass.a.in, n, pass.saved, pass.scratch, false);
  const float *o = pass.a.o.as<float>(), *d_o = pass.a.d_o.as<float>();
  pool.run_blocks(n.tokens * n.query_heads, tokens_per_task * n.query_heads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      pass.scratch.delta[row] = static_cast<float>(dot(o + row * dim, d_o + row * dim, dim));
    }
  });
  backward_segments(pool, pass);
  float* parts = pass.scratch.norm_parts;
  pool.run_blocks(n.tokens, tokens_per_task, [&](std::int64_t begin, std::int64_t end) {
    float* dq_norm = parts + begin / tokens_per_task * 2 * dim;
    std::memset(dq_norm, 0, static_cast<std::size_t>(2 * dim) * sizeof(float));
    for (std::int64_t t = begin; t < end; ++t) finish_token(pass, t, dq_norm, dq_norm + dim);
  });
  const std::int64_t blocks = (n.tokens + tokens_per_task - 1) / tokens_per_task;
  add_partial_sums(pool, blocks, dim, 2 * dim, parts, pass.a.dq_norm.as<float>());
  add_partial_sums(pool, blocks, dim, 2 * dim, parts + dim, pass.a.dk_norm.as<float>());
}

}  // namespace

void HostAttention::backward(Stream& stream, const Backward& a) {
  constexpr const char* op = "attention backward";
  const Sizes n = arguments::check(a);
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    Carve saved_carve(a.saved), scratch_carve(a.workspace);
    const AttentionSaved saved = layout_saved(saved_carve, n);
    run_backward(pool, {a, n, saved, layout_scratch(scratch_carve, n, pool.threads())});
  });
}

}  // namespace ananke::host
