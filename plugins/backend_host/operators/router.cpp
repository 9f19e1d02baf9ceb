#include "plugins/backend_host/operators/router.h"

#include <algorithm>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/carve.h"
#include "plugins/backend_host/operators/gemm.h"
#include "plugins/backend_host/operators/row_math.h"
#include "plugins/backend_host/operators/validate.h"

namespace ananke::host {
namespace {

constexpr std::int64_t tokens_per_task = 256;

Router::Sizes sizes_of(const char* op, const TensorView& x, const TensorView& gate, const TensorView& indices) {
  expect_rank(op, "x", x, 2);
  expect_rank(op, "gate", gate, 2);
  expect_rank(op, "indices", indices, 2);
  const Router::Sizes n{x.shape[0], x.shape[1], gate.shape[0], indices.shape[1]};
  expect(op, "x", x, {n.tokens, n.hidden});
  expect(op, "gate", gate, {n.experts, n.hidden});
  expect(op, "indices", indices, DType::i32, {n.tokens, n.k});
  ANANKE_CHECK(n.k >= 1 && n.k <= n.experts, "{}: k = {} of gate {}", op, n.k, to_string(gate.shape));
  return n;
}

// The k largest, largest first, ties to the lower index. Every index is valid and different even among NaN.
void choose(std::int64_t experts, std::int64_t k, const float* p, std::int32_t* indices) {
  for (std::int64_t j = 0; j < k; ++j) {
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < experts; ++e) {
      if ((best < 0 || p[e] > p[best]) && std::find(indices, indices + j, e) == indices + j) best = e;
    }
    indices[j] = best;
  }
}

void check_replayed(std::int64_t experts, std::int64_t k, const std::int32_t* indices, std::int64_t token) {
  for (std::int64_t j = 0; j < k; ++j) {
    ANANKE_CHECK(indices[j] >= 0 && indices[j] < experts, "router: replayed expert {} of {} for token {}", indices[j],
                 experts, token);
  }
}

void weigh(const Router::Sizes& n, bool normalise, const float* p, const std::int32_t* indices, float* weights) {
  float sum = 0;
  for (std::int64_t j = 0; j < n.k; ++j) sum += weights[j] = p[indices[j]];
  for (std::int64_t j = 0; normalise && j < n.k; ++j) weights[j] /= sum;
}

// Gradient of one token's logits from those of its weights: through the normalisation w_j = p_j / sum, then softmax.
void backward_row(const Router::Sizes& n, bool normalise, const float* p, const std::int32_t* indices,
                  const float* weights, const float* dweights, float* dlogits) {
  float sum = 1, weighted = 0;
  if (normalise) {
    sum = 0;
    for (std::int64_t j = 0; j < n.k; ++j) {
      sum += p[indices[j]];
      weighted += dweights[j] * weights[j];
    }
  }
  std::fill_n(dlogits, n.experts, 0.0f);
  for (std::int64_t j = 0; j < n.k; ++j) dlogits[indices[j]] += (dweights[j] - weighted) / sum;
  const float mean = static_cast<float>(dot(p, dlogits, n.experts));
  for (std::int64_t e = 0; e < n.experts; ++e) dlogits[e] = p[e] * (dlogits[e] - mean);
}

}  // namespace

std::size_t HostRouter::saved(const Sizes& s) const {
  Carve carve;
  carve.take<float>(s.tokens * s.experts);
  return carve.used();
}

std::size_t HostRouter::workspace(const Sizes& s) const {
  Carve carve;
  carve.take<float>(s.tokens * s.experts);
  return carve.used();
}

void HostRouter::forward(Stream& stream, const Forward& a) {
  constexpr const char* op = "router forward";
  const Sizes n = sizes_of(op, a.x, a.gate, a.indices);
  expect(op, "weights", a.weights, {n.tokens, n.k});
  expect(op, "counts", a.counts, DType::i32, {n.experts});
  expect_region(op, "saved", a.saved, saved(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    float* p = Carve(a.saved).take<float>(n.tokens * n.experts);
    std::int32_t* indices = a.indices.as<std::int32_t>();
    float* weights = a.weights.as<float>();
    gemm(pool, n.tokens, n.experts, n.hidden, 1, {a.x.as<float>(), n.hidden}, {a.gate.as<float>(), n.hidden, true}, 0,
         p, n.experts);
    pool.run_blocks(n.tokens, tokens_per_task, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        float* row = p + t * n.experts;
        const double sum = exp_row(row, n.experts, largest(row, n.experts));
        scale_row(row, n.experts, static_cast<float>(1 / sum));
        if (a.replay) {
          check_replayed(n.experts, n.k, indices + t * n.k, t);
        } else {
          choose(n.experts, n.k, row, indices + t * n.k);
        }
        weigh(n, a.normalise, row, indices + t * n.k, weights + t * n.k);
      }
    });
    std::int32_t* counts = a.counts.as<std::int32_t>();
    std::fill_n(counts, n.experts, 0);
    for (std::int64_t slot = 0; slot < n.tokens * n.k; ++slot) ++counts[indices[slot]];
  });
}

void HostRouter::backward(Stream& stream, const Backward& a) {
  constexpr const char* op = "router backward";
  const Sizes n = sizes_of(op, a.x, a.gate, a.indices);
  expect(op, "weights", a.weights, {n.tokens, n.k});
  expect(op, "dweights", a.dweights, {n.tokens, n.k});
  expect(op, "dx", a.dx, {n.tokens, n.hidden});
  expect(op, "dgate", a.dgate, {n.experts, n.hidden});
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const float* p = Carve(a.saved).take<float>(n.tokens * n.experts);
    float* dlogits = Carve(a.workspace).take<float>(n.tokens * n.experts);
    pool.run_blocks(n.tokens, tokens_per_task, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        backward_row(n, a.normalise, p + t * n.experts, a.indices.as<std::int32_t>() + t * n.k,
                     a.weights.as<float>() + t * n.k, a.dweights.as<float>() + t * n.k, dlogits + t * n.experts);
      }
    });
    gemm(pool, n.tokens, n.hidden, n.experts, 1, {dlogits, n.experts}, {a.gate.as<float>(), n.hidden}, 1,
         a.dx.as<float>(), n.hidden);
    gemm(pool, n.experts, n.hidden, n.tokens, 1, {dlogits, n.experts, true}, {a.x.as<float>(), n.hidden}, 1,
         a.dgate.as<float>(), n.hidden);
  });
}

}  // namespace ananke::host
