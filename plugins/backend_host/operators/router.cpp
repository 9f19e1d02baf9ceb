#include "plugins/backend_host/operators/router.h"

#include <algorithm>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/gemm.h"
#include "plugins/backend_host/operators/router_choice.h"
#include "plugins/backend_host/operators/row_math.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::host {
namespace {

constexpr std::int64_t tokens_per_task = 256;
constexpr float epsilon = 1e-20f;  // changes no bit of a sum that is not tiny

std::int64_t tasks_of(const Router::Sizes& n) { return (n.tokens + tokens_per_task - 1) / tokens_per_task; }

struct Saved {
  float* rows;      // [T, E]
  float* log_sums;  // [T]
  Saved(Carve& carve, const Router::Sizes& n)
      : rows(carve.take<float>(n.tokens * n.experts)), log_sums(carve.take<float>(n.tokens)) {}
};

// What a forward's tasks write besides outputs, a part for each task.
struct ForwardScratch {
  double* sums;         // [tasks, E + 2]: statistics without the counts
  float* rows;          // [tasks, 3, E]
  std::int32_t* order;  // [tasks, E]
  ForwardScratch(Carve& carve, const Router::Sizes& n)
      : sums(carve.take<double>(tasks_of(n) * (n.experts + 2))),
        rows(carve.take<float>(tasks_of(n) * 3 * n.experts)),
        order(carve.take<std::int32_t>(tasks_of(n) * n.experts)) {}
};

struct BackwardScratch {
  float* dlogits;  // [T, E]
  float* scores;   // [tasks, E]
  BackwardScratch(Carve& carve, const Router::Sizes& n)
      : dlogits(carve.take<float>(n.tokens * n.experts)), scores(carve.take<float>(tasks_of(n) * n.experts)) {}
};

void sigmoid_row(std::int64_t n, const float* logits, float* scores) {
#pragma omp simd
  for (std::int64_t e = 0; e < n; ++e) scores[e] = 1.0f / (1.0f + exp_of(-logits[e]));
}

double sum_row(std::int64_t n, const float* x) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t e = 0; e < n; ++e) sum += static_cast<double>(x[e]);
  return sum;
}

void check_replayed(std::int64_t experts, std::int64_t k, const std::int32_t* indices, std::int64_t token) {
  for (std::int64_t j = 0; j < k; ++j) {
    ANANKE_CHECK(indices[j] >= 0 && indices[j] < experts, "router: replayed expert {} of {} for token {}", indices[j],
                 experts, token);
  }
}

void weigh(const Router::Sizes& n, const RouterRule& rule, const float* scores, const std::int32_t* indices,
           float* weights) {
  float sum = 0;
  for (std::int64_t j = 0; j < n.k; ++j) sum += weights[j] = scores[indices[j]];
  const float divisor = rule.normalise ? sum + epsilon : 1.0f;
  const auto factor = static_cast<float>(rule.scaling_factor);
  for (std::int64_t j = 0; j < n.k; ++j) weights[j] = weights[j] / divisor * factor;
}

// One task's tokens, one after the other.
class ForwardTask {
 public:
  ForwardTask(const Router::Sizes& n, const Router::Forward& a, std::int64_t task) : n_(n), a_(a) {
    Carve saved_carve(a.saved), scratch_carve(a.workspace);
    const Saved saved(saved_carve, n);
    const ForwardScratch scratch(scratch_carve, n);
    rows_ = saved.rows;
    log_sums_ = saved.log_sums;
    sums_ = scratch.sums + task * (n.experts + 2);
    logits_ = scratch.rows + task * 3 * n.experts;
    scores_ = logits_ + n.experts;
    values_ = scores_ + n.experts;
    order_ = scratch.order + task * n.experts;
    if (a.statistics) std::fill_n(sums_, n.experts + 2, 0.0);
  }

  void token(std::int64_t t) {
    std::int32_t* indices = a_.indices.as<std::int32_t>() + t * n_.k;
    const float* scores = score(t);
    if (a_.replay) {
      check_replayed(n_.experts, n_.k, indices, t);
    } else {
      decide(t, scores, indices);
    }
    weigh(n_, a_.rule, scores, indices, a_.weights.as<float>() + t * n_.k);
  }

 private:
  // Scores of a token, and its part of the statistics.
  const float* score(std::int64_t t) {
    const std::int64_t experts = n_.experts;
    float* row = rows_ + t * experts;
    const bool softmax = a_.rule.score == RouterRule::Score::softmax;
    const float shift = largest(row, experts);
    std::copy_n(row, experts, logits_);
    float* const exponentials = softmax ? row : scores_;
    if (!softmax) std::copy_n(row, experts, scores_);
    const double sum = exp_row(exponentials, experts, shift);
    const double log_sum = static_cast<double>(shift) + std::log(sum);
    log_sums_[t] = static_cast<float>(log_sum);
    if (softmax) {
      scale_row(row, experts, static_cast<float>(1 / sum));
      if (a_.statistics) add_statistics(row, 1, log_sum, log_sum - dot(row, logits_, experts));
      return row;
    }
    sigmoid_row(experts, logits_, scores_);
    if (a_.statistics) {
      const double scores = sum_row(experts, scores_), total = scores + static_cast<double>(epsilon);
      // - sum of q ln q, q = s / total.
      const double entropy = (scores * std::log(total) - x_log_x(scores_, experts)) / total;
      add_statistics(scores_, total, log_sum, entropy);
    }
    return scores_;
  }

  void add_statistics(const float* scores, double total, double log_sum, double entropy) {
    const double share = 1 / total;
#pragma omp simd
    for (std::int64_t e = 0; e < n_.experts; ++e) sums_[e] += static_cast<double>(scores[e]) * share;
    sums_[n_.experts] += log_sum * log_sum;
    sums_[n_.experts + 1] += entropy;
  }

  void decide(std::int64_t t, const float* scores, std::int32_t* indices) {
    if (a_.rule.forced_balance) {
      for (std::int64_t j = 0; j < n_.k; ++j) indices[j] = static_cast<std::int32_t>((t * n_.k + j) % n_.experts);
      return;
    }
    const float* values = scores;
    if (a_.bias) {
      const float* bias = a_.bias.as<float>();
      for (std::int64_t e = 0; e < n_.experts; ++e) values_[e] = scores[e] + bias[e];
      values = values_;
    }
    choose_experts(n_, a_.rule, values, {logits_, order_}, indices);  // the logits are no longer needed
  }

  const Router::Sizes& n_;
  const Router::Forward& a_;
  float *rows_, *log_sums_, *logits_, *scores_, *values_;
  double* sums_;
  std::int32_t* order_;
};

// Sums of all tasks, in their order.
void write_statistics(const Router::Sizes& n, const Router::Forward& a) {
  Carve carve(a.workspace);
  const double* sums = ForwardScratch(carve, n).sums;
  auto* statistics = a.statistics.as<double>();
  const std::int32_t* counts = a.counts.as<std::int32_t>();
  for (std::int64_t e = 0; e < n.experts; ++e) statistics[e] = counts[e];
  std::fill_n(statistics + n.experts, n.experts + 2, 0.0);
  for (std::int64_t task = 0; task < tasks_of(n); ++task) {
    for (std::int64_t i = 0; i < n.experts + 2; ++i) statistics[n.experts + i] += sums[task * (n.experts + 2) + i];
  }
}

// Gradient of one token's scores from those of its weights, through w_j = factor s_j / (sum + epsilon).
void weights_backward(const Router::Sizes& n, const RouterRule& rule, const float* scores, const std::int32_t* indices,
                      const float* dweights, float* dscores) {
  float sum = 1, weighted = 0;
  if (rule.normalise) {
    sum = 0;
    for (std::int64_t j = 0; j < n.k; ++j) sum += scores[indices[j]];
    sum += epsilon;
    for (std::int64_t j = 0; j < n.k; ++j) weighted += dweights[j] * (scores[indices[j]] / sum);
  }
  const auto factor = static_cast<float>(rule.scaling_factor);
  std::fill_n(dscores, n.experts, 0.0f);
  for (std::int64_t j = 0; j < n.k; ++j) dscores[indices[j]] += factor * ((dweights[j] - weighted) / sum);
}

// d: gradient of the scores on entry, of the logits on return.
void softmax_backward(std::int64_t experts, const float* p, float log_sum, const float* factors, float* d) {
  for (std::int64_t e = 0; factors && e < experts; ++e) d[e] += factors[e];
  const float z = factors ? 2 * factors[experts] * log_sum : 0.0f;
  const float shift = z - static_cast<float>(dot(p, d, experts));
  for (std::int64_t e = 0; e < experts; ++e) d[e] = p[e] * (d[e] + shift);
}

void sigmoid_backward(std::int64_t experts, const float* logits, const float* s, float log_sum, const float* factors,
                      float* d) {
  float z = 0;
  if (factors) {
    z = 2 * factors[experts] * log_sum;
    const double total = sum_row(experts, s) + static_cast<double>(epsilon);
    const auto mean = static_cast<float>(dot(factors, s, experts) / total);
    for (std::int64_t e = 0; e < experts; ++e) d[e] += static_cast<float>((factors[e] - mean) / total);
  }
  for (std::int64_t e = 0; e < experts; ++e) d[e] *= s[e] * (1 - s[e]);
  for (std::int64_t e = 0; z != 0 && e < experts; ++e) d[e] += z * exp_of(logits[e] - log_sum);
}

void backward_token(const Router::Sizes& n, const Router::Backward& a, const Saved& saved, float* scratch, float* d,
                    std::int64_t t) {
  const float* row = saved.rows + t * n.experts;
  const float* factors = a.factors ? a.factors.as<float>() : nullptr;
  const bool softmax = a.rule.score == RouterRule::Score::softmax;
  if (!softmax) sigmoid_row(n.experts, row, scratch);
  weights_backward(n, a.rule, softmax ? row : scratch, a.indices.as<std::int32_t>() + t * n.k,
                   a.dweights.as<float>() + t * n.k, d);
  if (softmax) {
    softmax_backward(n.experts, row, saved.log_sums[t], factors, d);
  } else {
    sigmoid_backward(n.experts, row, scratch, saved.log_sums[t], factors, d);
  }
}

}  // namespace

std::size_t HostRouter::saved(const Sizes& s) const {
  Carve carve;
  const Saved counted(carve, s);
  return carve.used();
}

std::size_t HostRouter::workspace(const Sizes& s) const {
  Carve forward, backward;
  const ForwardScratch counted_forward(forward, s);
  const BackwardScratch counted_backward(backward, s);
  return std::max(forward.used(), backward.used());
}

void HostRouter::forward(Stream& stream, const Forward& a) {
  constexpr const char* op = "router forward";
  const Sizes n = arguments::check(a);
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    Carve carve(a.saved);
    gemm(pool, n.tokens, n.experts, n.hidden, 1, {a.x.as<float>(), n.hidden}, {a.gate.as<float>(), n.hidden, true}, 0,
         Saved(carve, n).rows, n.experts);
    pool.run_blocks(n.tokens, tokens_per_task, [&](std::int64_t begin, std::int64_t end) {
      ForwardTask task(n, a, begin / tokens_per_task);
      for (std::int64_t t = begin; t < end; ++t) task.token(t);
    });
    std::int32_t* counts = a.counts.as<std::int32_t>();
    const std::int32_t* indices = a.indices.as<std::int32_t>();
    std::fill_n(counts, n.experts, 0);
    for (std::int64_t slot = 0; slot < n.tokens * n.k; ++slot) ++counts[indices[slot]];
    if (a.statistics) write_statistics(n, a);
  });
}

void HostRouter::backward(Stream& stream, const Backward& a) {
  constexpr const char* op = "router backward";
  const Sizes n = arguments::check(a);
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    Carve saved_carve(a.saved), scratch_carve(a.workspace);
    const Saved saved(saved_carve, n);
    const BackwardScratch scratch(scratch_carve, n);
    pool.run_blocks(n.tokens, tokens_per_task, [&](std::int64_t begin, std::int64_t end) {
      float* scores = scratch.scores + begin / tokens_per_task * n.experts;
      for (std::int64_t t = begin; t < end; ++t)
        backward_token(n, a, saved, scores, scratch.dlogits + t * n.experts, t);
    });
    gemm(pool, n.tokens, n.hidden, n.experts, 1, {scratch.dlogits, n.experts}, {a.gate.as<float>(), n.hidden}, 1,
         a.dx.as<float>(), n.hidden);
    gemm(pool, n.experts, n.hidden, n.tokens, 1, {scratch.dlogits, n.experts, true}, {a.x.as<float>(), n.hidden}, 1,
         a.dgate.as<float>(), n.hidden);
  });
}

}  // namespace ananke::host
