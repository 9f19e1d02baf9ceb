#include "plugins/backend_host/operators/head_loss.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/gemm.h"
#include "plugins/backend_host/operators/row_math.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::host {
namespace {

// Tokens of a chunk: enough for fast products, few enough that logits stay near 64 MiB at large vocabularies.
constexpr std::int64_t most_tokens = 512, fewest_tokens = 64, chunk_elements = 1 << 24;
constexpr std::int64_t elements_per_task = 1 << 14;

std::int64_t chunk_of(const HeadLoss::Sizes& n) {
  const std::int64_t fitting = chunk_elements / std::max<std::int64_t>(1, n.vocabulary);
  return std::min(std::max<std::int64_t>(1, n.tokens), std::clamp(fitting, fewest_tokens, most_tokens));
}

struct Scratch {
  float* logits;   // [chunk, V]
  double* losses;  // [chunk]
};

Scratch layout(Carve& carve, const HeadLoss::Sizes& n) {
  Scratch scratch{};
  scratch.logits = carve.take<float>(chunk_of(n) * n.vocabulary);
  scratch.losses = carve.take<double>(chunk_of(n));
  return scratch;
}

// The loss of one token; with `scale`, the logits become the gradient of scale * loss (0 without a target).
double loss_of_row(std::int64_t vocabulary, std::int32_t target, float* logits, const float* scale) {
  if (target < 0) {
    if (scale) std::memset(logits, 0, static_cast<std::size_t>(vocabulary) * sizeof(float));
    return 0;
  }
  ANANKE_CHECK(target < vocabulary, "head_loss: target {} of a vocabulary of {}", target, vocabulary);
  const float top = largest(logits, vocabulary);
  const double wanted = static_cast<double>(logits[target]);
  const double sum = exp_row(logits, vocabulary, top);
  if (scale) {
    scale_row(logits, vocabulary, static_cast<float>(static_cast<double>(*scale) / sum));
    logits[target] -= *scale;
  }
  return static_cast<double>(top) + std::log(sum) - wanted;
}

// Logits of tokens [begin, begin + count), their losses added up, and, with `scale`, their gradient in scratch.logits.
double chunk_loss(ThreadPool& pool, const HeadLoss::Sizes& n, const Scratch& scratch, const float* x,
                  const float* weight, const std::int32_t* targets, std::int64_t count, const float* scale,
                  float* logits_out) {
  gemm(pool, count, n.vocabulary, n.hidden, 1, {x, n.hidden}, {weight, n.hidden, true}, 0, scratch.logits,
       n.vocabulary);
  const std::int64_t block = std::max<std::int64_t>(1, elements_per_task / std::max<std::int64_t>(1, n.vocabulary));
  pool.run_blocks(count, block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* row = scratch.logits + t * n.vocabulary;
      if (logits_out) {
        std::memcpy(logits_out + t * n.vocabulary, row, static_cast<std::size_t>(n.vocabulary) * sizeof(float));
      }
      scratch.losses[t] = loss_of_row(n.vocabulary, targets[t], row, scale);
    }
  });
  double total = 0;
  for (std::int64_t t = 0; t < count; ++t) total += scratch.losses[t];
  return total;
}

}  // namespace

std::size_t HostHeadLoss::workspace(const Sizes& s) const {
  Carve carve;
  layout(carve, s);
  return carve.used();
}

void HostHeadLoss::forward(Stream& stream, const Forward& a) {
  constexpr const char* op = "head_loss forward";
  const Sizes n = arguments::check(a);
  expect_region(op, "workspace", a.workspace, workspace(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    Carve carve(a.workspace);
    const Scratch scratch = layout(carve, n);
    const std::int64_t chunk = chunk_of(n);
    double total = 0;
    for (std::int64_t t = 0; t < n.tokens; t += chunk) {
      total += chunk_loss(pool, n, scratch, a.x.as<float>() + t * n.hidden, a.weight.as<float>(),
                          a.targets.as<std::int32_t>() + t, std::min(chunk, n.tokens - t), nullptr,
                          a.logits ? a.logits.as<float>() + t * n.vocabulary : nullptr);
    }
    *a.loss.as<double>() += total;
  });
}

void HostHeadLoss::forward_backward(Stream& stream, const ForwardBackward& a) {
  constexpr const char* op = "head_loss forward_backward";
  const Sizes n = arguments::check(a);
  expect_region(op, "workspace", a.workspace, workspace(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    Carve carve(a.workspace);
    const Scratch scratch = layout(carve, n);
    const std::int64_t chunk = chunk_of(n);
    const float* weight = a.weight.as<float>();
    double total = 0;
    for (std::int64_t t = 0; t < n.tokens; t += chunk) {
      const std::int64_t count = std::min(chunk, n.tokens - t);
      const float* x = a.x.as<float>() + t * n.hidden;
      total += chunk_loss(pool, n, scratch, x, weight, a.targets.as<std::int32_t>() + t, count, a.scale.as<float>(),
                          a.logits ? a.logits.as<float>() + t * n.vocabulary : nullptr);
      gemm(pool, count, n.hidden, n.vocabulary, 1, {scratch.logits, n.vocabulary}, {weight, n.hidden}, 0,
           a.dx.as<float>() + t * n.hidden, n.hidden);
      gemm(pool, n.vocabulary, n.hidden, count, 1, {scratch.logits, n.vocabulary, true}, {x, n.hidden}, 1,
           a.dweight.as<float>(), n.hidden);
    }
    *a.loss.as<double>() += total;
  });
}

}  // namespace ananke::host
