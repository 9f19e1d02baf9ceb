// Every reference operator against finite differences, for each of its inputs and weights.
#include <gtest/gtest.h>

#include "runtime/operators/reference/adamw.h"
#include "runtime/operators/reference/add_rms_norm.h"
#include "runtime/operators/reference/attention.h"
#include "runtime/operators/reference/elementwise.h"
#include "runtime/operators/reference/embedding.h"
#include "runtime/operators/reference/exchange.h"
#include "runtime/operators/reference/grouped_mlp.h"
#include "runtime/operators/reference/head_loss.h"
#include "runtime/operators/reference/linear.h"
#include "runtime/operators/reference/permute.h"
#include "tests/runtime/operators/finite_differences.h"

namespace ananke {
namespace {

using Ints = std::vector<std::int32_t>;

TEST(ReferenceLinear, HasTheGradientsOfItsForward) {
  const std::int64_t tokens = 3, in = 5, out = 4;
  Doubles x = random_doubles(tokens * in, 1), w = random_doubles(out * in, 2), y(tokens * out);
  const Doubles dy = random_doubles(tokens * out, 3);
  Doubles dx(x.size(), 9), dw(w.size(), 0.5);
  reference::linear_backward(tokens, in, out, x.data(), w.data(), dy.data(), dx.data(), false, dw.data());
  for (double& value : dw) value -= 0.5;  // added to
  const auto value = [&] {
    reference::linear_forward(tokens, in, out, x.data(), w.data(), y.data());
    return inner(y, dy);
  };
  expect_gradient("x", x, dx, value);
  expect_gradient("weight", w, dw, value);
  Doubles twice = dx;
  reference::linear_backward<double>(tokens, in, out, x.data(), w.data(), dy.data(), twice.data(), true, nullptr);
  for (std::size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(twice[i], 2 * dx[i], 1e-12);
}

TEST(ReferenceEmbedding, HasTheGradientOfItsForwardAndAddsRepeatedTokens) {
  const Ints tokens = {2, 0, 2, 3};
  Doubles table = random_doubles(4 * 3, 1), y(4 * 3), dtable(4 * 3);
  const Doubles dy = random_doubles(4 * 3, 2);
  reference::embedding_backward(4, 3, tokens.data(), dy.data(), dtable.data());
  expect_gradient("table", table, dtable, [&] {
    reference::embedding_forward(4, 3, tokens.data(), table.data(), y.data());
    return inner(y, dy);
  });
}

TEST(ReferenceAddRmsNorm, HasTheGradientsOfItsForward) {
  const std::int64_t rows = 3, width = 5;
  const double eps = 1e-3;
  Doubles x = random_doubles(rows * width, 1), delta = random_doubles(rows * width, 2), w = random_doubles(width, 3);
  const Doubles dy = random_doubles(rows * width, 4), dh_in = random_doubles(rows * width, 5);
  Doubles h(x.size()), y(x.size()), dh(x.size()), dw(width);
  const auto value = [&] {  // h is an output too: it goes on as the residual
    reference::add_rms_norm_forward(rows, width, eps, x.data(), delta.data(), w.data(), h.data(), y.data());
    return inner(y, dy) + inner(h, dh_in);
  };
  value();
  reference::add_rms_norm_backward(rows, width, eps, h.data(), w.data(), dy.data(), dh_in.data(), dh.data(), dw.data());
  expect_gradient("x", x, dh, value);
  expect_gradient("delta", delta, dh, value);
  expect_gradient("weight", w, dw, value);
}

class ReferenceAttention : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(ReferenceAttention, HasTheGradientsOfItsForward) {
  const auto [query_heads, key_heads] = GetParam();
  const std::int64_t tokens = 7, dim = 4, cached = 5;
  const Ints offsets = {0, 1, 5, 7}, positions = {0, 0, 1, 2, 3, 3, 4};
  Doubles q = random_doubles(tokens * query_heads * dim, 1), k = random_doubles(tokens * key_heads * dim, 2);
  Doubles v = random_doubles(tokens * key_heads * dim, 3), q_norm = random_doubles(dim, 4),
          k_norm = random_doubles(dim, 5);
  Doubles angles = random_doubles(cached * dim / 2, 6), cosine, sine;
  for (double angle : angles) cosine.push_back(std::cos(3 * angle)), sine.push_back(std::sin(3 * angle));
  const Doubles d_o = random_doubles(tokens * query_heads * dim, 7);
  Doubles o(d_o.size()), dq(q.size()), dk(k.size()), dv(v.size()), dq_norm(dim), dk_norm(dim);
  const reference::AttentionInputs<double> in{
      tokens,        query_heads,   key_heads,     dim,         q.data(),         k.data(),       v.data(),
      q_norm.data(), k_norm.data(), cosine.data(), sine.data(), positions.data(), offsets.data(), 3,
      1e-3};
  reference::attention_backward(in, d_o.data(), {dq.data(), dk.data(), dv.data(), dq_norm.data(), dk_norm.data()});
  const auto value = [&] {
    reference::attention_forward(in, o.data());
    return inner(o, d_o);
  };
  expect_gradient("q", q, dq, value);
  expect_gradient("k", k, dk, value);
  expect_gradient("v", v, dv, value);
  expect_gradient("q_norm", q_norm, dq_norm, value);
  expect_gradient("k_norm", k_norm, dk_norm, value);
}

INSTANTIATE_TEST_SUITE_P(Heads, ReferenceAttention,
                         testing::Values(std::pair(1, 1), std::pair(4, 2), std::pair(3, 1), std::pair(2, 2)));

TEST(ReferencePermute, GroupsByExpertAndHasTheGradientsOfItsForward) {
  const reference::PermuteSizes n{3, 2, 4, 2};
  const Ints indices = {3, 0, 0, 1, 3, 0};
  Doubles x = random_doubles(n.tokens * n.hidden, 1), rows(n.tokens * n.k * n.hidden), dx(x.size());
  const Doubles drows = random_doubles(n.tokens * n.k * n.hidden, 2);
  Ints offsets(n.experts + 1), row_of_slot(n.tokens * n.k);
  const auto value = [&] {
    reference::permute_forward(n, x.data(), indices.data(), rows.data(), offsets.data(), row_of_slot.data());
    return inner(rows, drows);
  };
  value();
  EXPECT_EQ(offsets, (Ints{0, 3, 4, 4, 6}));
  EXPECT_EQ(row_of_slot, (Ints{4, 0, 1, 3, 5, 2}));
  reference::permute_backward(n, drows.data(), row_of_slot.data(), dx.data());
  expect_gradient("x", x, dx, value);
}

TEST(ReferenceCombine, HasTheGradientsOfItsForward) {
  const reference::PermuteSizes n{3, 2, 4, 2};
  const Ints row_of_slot = {4, 0, 1, 3, 5, 2};
  Doubles rows = random_doubles(12, 1), weights = random_doubles(6, 2), y(6), drows(12), dweights(6);
  const Doubles dy = random_doubles(6, 3);
  Doubles d_weighted(12), row_weights(6), d_row_weights(6), dx(6);
  reference::combine_backward(n, row_of_slot.data(), weights.data(), dy.data(), d_weighted.data(), row_weights.data());
  for (std::size_t i = 0; i < 12; ++i) {  // as who made the rows does
    drows[i] = row_weights[i / 2] * d_weighted[i];
    d_row_weights[i / 2] += rows[i] * d_weighted[i];
  }
  reference::permute_backward(n, drows.data(), row_of_slot.data(), dx.data(), d_row_weights.data(), dweights.data());
  const auto value = [&] {
    reference::combine_forward(n, rows.data(), row_of_slot.data(), weights.data(), y.data());
    return inner(y, dy);
  };
  expect_gradient("rows", rows, drows, value);
  expect_gradient("weights", weights, dweights, value);
}

// 5 tokens, 6 experts on 3 ranks: what the exchange of one rank computes, all the way and back.
class ReferenceExchange : public testing::Test {
 protected:
  const reference::ExchangeSizes n{5, 2, 6, 3, 3};
  const Ints indices = {0, 1, 5, 3, 2, 0, 4, 5, 3, 1, 0, 4, 2, 3, 5};
  Ints copies = Ints(15), counts = Ints(6);
  std::int64_t plan() {  // of one chunk; the number of copies
    reference::exchange_plan(n, indices.data(), 5, 1, copies.data(), counts.data());
    return counts[0] + counts[1] + counts[2];
  }
};

TEST_F(ReferenceExchange, PlansOneCopyPerRankOrderedByRankThenTokenWithinAChunk) {
  EXPECT_EQ(plan(), 10);
  EXPECT_EQ(copies, (Ints{0, -1, 6, 1, 3, -1, -1, 4, 7, 2, -1, 8, -1, 5, 9}));
  EXPECT_EQ((Ints{counts[0], counts[1], counts[2]}), (Ints{3, 3, 4}));
}

TEST_F(ReferenceExchange, CollectIsTheAdjointOfPack) {
  const std::int64_t sent = plan();
  const Doubles x = random_doubles(n.tokens * n.hidden, 1), d_wire = random_doubles(sent * n.hidden, 2);
  Doubles wire(d_wire.size()), dx(x.size());
  reference::exchange_pack(n, x.data(), copies.data(), wire.data());
  reference::exchange_collect(n, d_wire.data(), copies.data(), dx.data());
  EXPECT_NEAR(inner(wire, d_wire), inner(x, dx), 1e-12);
}

TEST_F(ReferenceExchange, CombineHasItsGradientsOverRowsInExpertOrder) {
  const Ints chosen = {3, 2, 0, 4, 2, 3, 5, 3, 1};  // of 3 copies, on the rank that holds experts 2 and 3
  Ints offsets(3), rows(9), slots(9);
  reference::exchange_expand(n, 3, chosen.data(), 2, 2, offsets.data(), rows.data(), slots.data());
  EXPECT_EQ(offsets, (Ints{0, 2, 5}));
  EXPECT_EQ(rows, (Ints{0, 2, -1, 1, 3, -1, 4, -1, -1}));
  EXPECT_EQ(slots, (Ints{1, 0, -1, 1, 2, -1, 1, -1, -1}));
  Doubles outputs = random_doubles(5 * n.hidden, 1), weights = random_doubles(9, 2), wire(3 * n.hidden);
  const Doubles dy = random_doubles(wire.size(), 3);
  Doubles d_outputs(outputs.size()), by_slot(9), dweights(9), row_weights(5), d_row_weights(5);
  reference::exchange_combine_backward(n, 3, dy.data(), rows.data(), weights.data(), d_outputs.data(),
                                       row_weights.data());
  for (std::size_t i = 0; i < outputs.size(); ++i) {  // as who made the outputs does
    const std::size_t row = i / static_cast<std::size_t>(n.hidden);
    d_row_weights[row] += outputs[i] * d_outputs[i];
    d_outputs[i] *= row_weights[row];
  }
  reference::exchange_dweights(n, 3, d_row_weights.data(), rows.data(), slots.data(), by_slot.data());
  for (std::size_t m = 0; m < 9; ++m)
    dweights[m] = slots[m] < 0 ? 0 : by_slot[m / 3 * 3 + static_cast<std::size_t>(slots[m])];
  const auto value = [&] {
    reference::exchange_combine(n, 3, outputs.data(), rows.data(), weights.data(), wire.data());
    return inner(wire, dy);
  };
  expect_gradient("outputs", outputs, d_outputs, value);
  expect_gradient("weights", weights, dweights, value);
}

TEST(ReferenceGroupedMlp, HasTheGradientsOfItsForward) {
  const reference::MlpSizes n{3, 4, 3};
  const Ints offsets = {0, 2, 2, 5};
  const std::int64_t stride = 3 * n.hidden * n.width;  // gate, up, down of an expert lie together
  Doubles x = random_doubles(5 * n.hidden, 1), w = random_doubles(n.groups * stride, 2), y(x.size());
  const Doubles dy = random_doubles(5 * n.hidden, 3);
  Doubles dx(x.size()), dw(w.size());
  const auto stack = [&](auto* first) {
    const std::int64_t size = n.hidden * n.width;
    return reference::MlpWeights<std::remove_pointer_t<decltype(first)>>{first,  first + size, first + 2 * size,
                                                                         stride, stride,       stride};
  };
  const auto value = [&] {
    reference::grouped_mlp_forward<double>(n, x.data(), offsets.data(), stack(std::as_const(w).data()), y.data());
    return inner(y, dy);
  };
  reference::grouped_mlp_backward<double>(n, x.data(), offsets.data(), stack(std::as_const(w).data()), dy.data(),
                                          dx.data(), stack(dw.data()));
  expect_gradient("x", x, dx, value);
  expect_gradient("weights", w, dw, value);

  Doubles row_weights = random_doubles(5, 4), d_row_weights(5);
  const auto weighted = [&] {
    reference::grouped_mlp_forward<double>(n, x.data(), offsets.data(), stack(std::as_const(w).data()), y.data());
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= row_weights[i / static_cast<std::size_t>(n.hidden)];
    return inner(y, dy);
  };
  dw.assign(w.size(), 0);
  reference::grouped_mlp_backward<double>(n, x.data(), offsets.data(), stack(std::as_const(w).data()), dy.data(),
                                          dx.data(), stack(dw.data()), row_weights.data(), d_row_weights.data());
  expect_gradient("x of weighted rows", x, dx, weighted);
  expect_gradient("weights of weighted rows", w, dw, weighted);
  expect_gradient("weights of rows", row_weights, d_row_weights, weighted);
}

TEST(ReferenceHeadLoss, HasTheGradientsOfItsForwardAndSkipsTokensWithoutTarget) {
  const reference::HeadSizes n{4, 3, 5};
  const Ints targets = {1, -1, 4, 0};
  const double scale = 0.3;
  Doubles x = random_doubles(n.tokens * n.hidden, 1), w = random_doubles(n.vocabulary * n.hidden, 2);
  Doubles dx(x.size(), 7), dw(w.size());
  double loss = 0;
  reference::head_loss<double>(n, x.data(), w.data(), targets.data(), scale, &loss, dx.data(), dw.data(), nullptr);
  const auto value = [&] {
    double again = 0;
    reference::head_loss<double>(n, x.data(), w.data(), targets.data(), scale, &again, nullptr, nullptr, nullptr);
    return scale * again;
  };
  EXPECT_DOUBLE_EQ(value(), scale * loss);
  expect_gradient("x", x, dx, value);
  expect_gradient("weight", w, dw, value);
  for (int j = 0; j < 3; ++j) EXPECT_EQ(dx[3 + j], 0);
}

TEST(ReferenceAdamW, MatchesTwoStepsDoneByHand) {
  Doubles w = {1}, m = {0}, v = {0};
  reference::AdamWHyper hyper{0.1, 0.9, 0.99, 1e-8, 0.5, 1};
  const Doubles first = {2}, second = {-1};
  reference::adamw(hyper, 1, first.data(), 0.5, true, w.data(), m.data(), v.data());
  EXPECT_NEAR(w[0], 1 * 0.95 - 0.1, 1e-8);  // the first step is lr in the direction of the sign
  EXPECT_NEAR(m[0], 0.1, 1e-15);
  EXPECT_NEAR(v[0], 0.01, 1e-15);
  hyper.step = 2;
  reference::adamw(hyper, 1, second.data(), 0.5, true, w.data(), m.data(), v.data());
  const double m2 = 0.09 - 0.05, v2 = 0.0099 + 0.01 * 0.25;
  EXPECT_NEAR(w[0], 0.85 * 0.95 - 0.1 * (m2 / 0.19) / (std::sqrt(v2 / 0.0199) + 1e-8), 1e-9);
  const Doubles before = w;
  reference::adamw(hyper, 1, second.data(), 0.5, false, w.data(), m.data(), v.data());
  EXPECT_EQ(w, before);
}

TEST(ReferenceElementwise, ClipsLikeTorchAndSeesNonFiniteNumbers) {
  float scale = 0;
  std::int32_t finite = 0;
  reference::clip(25, 1, 1, &scale, &finite);
  EXPECT_FLOAT_EQ(scale, static_cast<float>(1 / (5 + 1e-6)));
  EXPECT_EQ(finite, 1);
  reference::clip(25, 1, 0, &scale, &finite);
  EXPECT_EQ(scale, 1);
  reference::clip(25, std::nan(""), 1, &scale, &finite);
  EXPECT_EQ(finite, 0);
  reference::clip(INFINITY, 1, 1, &scale, &finite);
  EXPECT_EQ(finite, 0);
}

}  // namespace
}  // namespace ananke
