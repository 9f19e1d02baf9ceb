// Rows that begin beyond element 2^31: an offset kept in 32 bits would read or write elsewhere. Only the last rows hold
// anything; what an operator makes of them must be what it makes of them alone.
#include <algorithm>

#include "runtime/operators/reference/permute.h"
#include "tests/plugins/backend_host/operators/far_tensor.h"

namespace ananke::host {
namespace {

TEST_F(Far, ReferenceOfPermuteAndCombine) {
  const reference::PermuteSizes n{524'290, 4'096, 1, 1};
  Ints indices(n.tokens), offsets(2), row_of_slot(n.tokens);
  const Shape shape{n.tokens, n.hidden};
  const Floats weights(n.tokens, 0.5f);
  Floats row_weights(n.tokens), dweights(n.tokens);
  const auto x = FarTensor::zeros(shape);
  fill(x.last(n.hidden), 1);
  const Floats row = floats_of(x.last(n.hidden));
  Floats half = row;
  for (float& value : half) value *= 0.5f;
  const float* from = x.view().as<float>();
  const auto rows = FarTensor::sink(shape, n.hidden), y = FarTensor::sink(shape, n.hidden),
             dx = FarTensor::sink(shape, n.hidden), d_weighted = FarTensor::sink(shape, n.hidden);
  reference::permute_forward(n, from, indices.data(), rows.view().as<float>(), offsets.data(), row_of_slot.data());
  expect_same("rows", rows.last(n.hidden), row);
  reference::permute_backward(n, from, row_of_slot.data(), dx.view().as<float>(), weights.data(), dweights.data());
  expect_same("dx", dx.last(n.hidden), row);
  reference::combine_forward(n, from, row_of_slot.data(), weights.data(), y.view().as<float>());
  expect_same("y", y.last(n.hidden), half);
  reference::combine_backward(n, row_of_slot.data(), weights.data(), from, d_weighted.view().as<float>(),
                              row_weights.data());
  expect_same("d_weighted", d_weighted.last(n.hidden), row);
  EXPECT_EQ(row_weights.back(), 0.5f);
  EXPECT_EQ(dweights.back(), 0.5f);
}

TEST_F(Far, AddRmsNorm) {
  const AddRmsNorm::Sizes n{524'290, 4'096}, small{1, n.width};
  const Floats weight = random_floats(n.width, 2);
  const TensorView vw = view(weight, {n.width});
  const auto x = FarTensor::zeros({n.rows, n.width});
  fill(x.last(n.width), 1);
  const Floats row = floats_of(x.last(n.width));
  Floats h1(n.width), y1(n.width), dh1(n.width), dweight1(n.width), dweight(n.width);
  const Shape one{1, n.width};
  {
    Scratch saved(host->add_rms_norm->saved(small)), workspace(host->add_rms_norm->workspace(small));
    host->add_rms_norm->forward(host.stream, {view(row, one), view(row, one), vw, view(h1, one), view(y1, one), 1e-6,
                                              saved.region(), workspace.region()});
    host->add_rms_norm->backward(host.stream, {view(h1, one), vw, view(row, one), view(row, one), view(dh1, one),
                                               view(dweight1, {n.width}), 1e-6, saved.region(), workspace.region()});
    host.finish();
  }
  Scratch saved(host->add_rms_norm->saved(n)), workspace(host->add_rms_norm->workspace(n));
  const auto h = FarTensor::sink({n.rows, n.width}, n.width), y = FarTensor::sink({n.rows, n.width}, n.width);
  host->add_rms_norm->forward(host.stream,
                              {x.view(), x.view(), vw, h.view(), y.view(), 1e-6, saved.region(), workspace.region()});
  host.finish();
  expect_same("h", h.last(n.width), h1);
  expect_same("y", y.last(n.width), y1);
  // The rows before the last are zero in y, and in x, which stands for dy: they add nothing to dweight.
  const auto dh = FarTensor::sink({n.rows, n.width}, n.width);
  const auto kept = FarTensor::zeros({n.rows, n.width});
  std::ranges::copy(h1, kept.last(n.width).begin());
  host->add_rms_norm->backward(host.stream, {kept.view(), vw, x.view(), x.view(), dh.view(), view(dweight, {n.width}),
                                             1e-6, saved.region(), workspace.region()});
  host.finish();
  expect_same("dh", dh.last(n.width), dh1);
  expect_same("dweight", dweight, dweight1);
}

TEST_F(Far, EmbeddingWithALargeTableAndWithManyTokens) {
  constexpr std::int64_t rows = 524'290, hidden = 4'096;
  const auto table = FarTensor::zeros({rows, hidden});
  fill(table.last(hidden), 1);
  const Floats row = floats_of(table.last(hidden));
  {
    const Ints ids = {rows - 1, 0};
    Floats y(2 * hidden);
    host->embedding->forward(host.stream, {view(ids, {2}), table.view(), view(y, {2, hidden})});
    const auto dtable = FarTensor::zeros({rows, hidden});
    host->embedding->backward(host.stream, {view(ids, {2}), view(y, {2, hidden}), dtable.view()});
    host.finish();
    expect_same("y", std::span(y).first(hidden), row);
    expect_same("dtable", dtable.last(hidden), row);
  }
  Ints ids(rows);
  ids.back() = 1;
  const Floats small = random_floats(2 * hidden, 2);
  Floats dsmall(2 * hidden);
  const auto y = FarTensor::sink({rows, hidden}, hidden);
  host->embedding->forward(host.stream, {view(ids, {rows}), view(small, {2, hidden}), y.view()});
  host->embedding->backward(host.stream, {view(ids, {rows}), table.view(), view(dsmall, {2, hidden})});
  host.finish();
  expect_same("y", y.last(hidden), floats_of(std::span(small).last(hidden)));
  expect_same("dtable", std::span(dsmall).last(hidden), row);
}

TEST_F(Far, LinearWithManyRowsAndWithALargeWeight) {
  constexpr std::int64_t many = 524'290, wide = 4'096;
  const Floats one = random_floats(wide, 2);
  const auto large = FarTensor::zeros({many, wide});
  fill(large.last(wide), 1);
  const Floats row = floats_of(large.last(wide));
  double product = 0;
  for (std::int64_t i = 0; i < wide; ++i) product += static_cast<double>(row[i]) * one[i];
  const Floats want = {static_cast<float>(product)}, unit = {1.0f};
  Floats y(many), dy(many), dweight(wide);
  dy.back() = 1;
  // x is large: y = x one^T, dx = dy one, dweight = dy^T x.
  const auto dx = FarTensor::sink({many, wide}, wide);
  host->linear->forward(host.stream, {large.view(), view(one, {1, wide}), view(y, {many, 1})});
  host->linear->backward(host.stream, {large.view(), view(one, {1, wide}), view(dy, {many, 1}), dx.view(), false,
                                       view(dweight, {1, wide})});
  host.finish();
  EXPECT_NEAR(y.back(), product, 1e-3);
  expect_same("dx", dx.last(wide), one);
  expect_same("dweight", dweight, row);
  // The weight is large: y = one weight^T, dx = dy weight, dweight = dy^T one.
  Floats dx_one(wide);
  std::ranges::fill(y, 0.0f);
  const auto dlarge = FarTensor::sink({many, wide}, wide);
  host->linear->forward(host.stream, {view(one, {1, wide}), large.view(), view(y, {1, many})});
  host->linear->backward(host.stream, {view(one, {1, wide}), large.view(), view(dy, {1, many}), view(dx_one, {1, wide}),
                                       false, dlarge.view()});
  host.finish();
  EXPECT_NEAR(y.back(), product, 1e-3);
  expect_same("dx", dx_one, row);
  expect_same("dweight", dlarge.last(wide), one);
}

// Backward would need four tensors of this size in its workspace, which are written to.
TEST_F(Far, AttentionForward) {
  constexpr std::int64_t heads = 64, dim = 128, length = 32, tokens = far / (heads * dim) + 2 * length,
                         tail = length * heads * dim;
  const auto sizes = [&](std::int64_t t) { return Attention::Sizes{t, heads, 1, dim, t / length, length}; };
  const Floats norm = random_floats(dim, 4), cosine(length * dim / 2, 0.8f), sine(length * dim / 2, 0.6f);
  const Floats k1 = random_floats(length * dim, 2), v1 = random_floats(length * dim, 3);
  const auto q = FarTensor::zeros({tokens, heads, dim}), o = FarTensor::sink({tokens, heads, dim}, tail);
  fill(q.last(tail), 1);
  const Floats q1 = floats_of(q.last(tail));
  Floats k(tokens * dim), v(tokens * dim), o1(tail);
  std::ranges::copy(k1, k.end() - length * dim);
  std::ranges::copy(v1, v.end() - length * dim);
  const auto run = [&](std::int64_t t, const TensorView& vq, const Floats& keys, const Floats& values,
                       const TensorView& out, Region workspace) {
    Ints positions, offsets;
    for (std::int64_t i = 0; i < t; ++i) positions.push_back(static_cast<std::int32_t>(i % length));
    for (std::int64_t i = 0; i <= t; i += length) offsets.push_back(static_cast<std::int32_t>(i));
    Scratch saved(host->attention->saved(sizes(t)));
    host->attention->forward(host.stream, {{vq,
                                            view(keys, {t, 1, dim}),
                                            view(values, {t, 1, dim}),
                                            view(norm, {dim}),
                                            view(norm, {dim}),
                                            view(cosine, {length, dim / 2}),
                                            view(sine, {length, dim / 2}),
                                            view(positions, {t}),
                                            {view(offsets, {t / length + 1}), t / length, length},
                                            1e-6},
                                           out,
                                           saved.region(),
                                           workspace});
    host.finish();
  };
  Scratch small(host->attention->workspace(sizes(length)));
  run(length, view(q1, {length, heads, dim}), k1, v1, view(o1, {length, heads, dim}), small.region());
  // Rotated queries stand at its begin, and all but the last are zero: they may lie over each other.
  const auto floats = static_cast<std::int64_t>(host->attention->workspace(sizes(tokens)) / sizeof(float));
  const auto workspace = FarTensor::sink({floats}, floats - (tokens * heads * dim - tail));
  run(tokens, q.view(), k, v, o.view(), workspace.region());
  expect_same("o", o.last(tail), o1);
}

TEST_F(Far, Router) {
  const Router::Sizes n{524'290, 4'096, 2, 1}, small{1, n.hidden, n.experts, n.k};
  const Floats gate = random_floats(n.experts * n.hidden, 2);
  const TensorView vg = view(gate, {n.experts, n.hidden});
  const auto x = FarTensor::zeros({n.tokens, n.hidden});
  fill(x.last(n.hidden), 1);
  const Floats row = floats_of(x.last(n.hidden));
  const auto run = [&](const Router::Sizes& s, const TensorView& in, const TensorView& dx, Floats& weights,
                       Floats& dgate) {
    Ints indices(s.tokens), counts(s.experts);
    weights.resize(static_cast<std::size_t>(s.tokens));
    Floats dweights(s.tokens);
    dweights.back() = 1;
    Scratch saved(host->router->saved(s)), workspace(host->router->workspace(s));
    const Shape slots{s.tokens, 1};
    host->router->forward(host.stream, {in,
                                        vg,
                                        {},
                                        {.normalise = false},
                                        false,
                                        view(indices, slots),
                                        view(weights, slots),
                                        view(counts, {s.experts}),
                                        {},
                                        saved.region(),
                                        workspace.region()});
    host->router->backward(host.stream, {in,
                                         vg,
                                         {.normalise = false},
                                         view(indices, slots),
                                         view(weights, slots),
                                         view(dweights, slots),
                                         {},
                                         dx,
                                         view(dgate, {s.experts, s.hidden}),
                                         saved.region(),
                                         workspace.region()});
    host.finish();
  };
  Floats weights1, weights, dgate1(n.experts * n.hidden), dgate(n.experts * n.hidden), dx1(n.hidden);
  run(small, view(row, {1, n.hidden}), view(dx1, {1, n.hidden}), weights1, dgate1);
  const auto dx = FarTensor::sink({n.tokens, n.hidden}, n.hidden);
  run(n, x.view(), dx.view(), weights, dgate);
  expect_same("weights", std::span(weights).last(1), weights1);
  expect_same("dx", dx.last(n.hidden), dx1);
  expect_same("dgate", dgate, dgate1);
}

// Many rows, and weights of the second group that begin beyond 2^31.
TEST_F(Far, GroupedMlp) {
  const GroupedMlp::Sizes n{524'290, 4'096, 2, 2}, small{1, n.hidden, n.width, 1};
  const std::int64_t matrix = n.hidden * n.width;
  const auto x = FarTensor::zeros({n.rows, n.hidden});
  fill(x.last(n.hidden), 1);
  const Floats row = floats_of(x.last(n.hidden));
  const auto gate = FarTensor::zeros({far + 2 * matrix}), up = FarTensor::zeros({far + 2 * matrix}),
             down = FarTensor::zeros({far + 2 * matrix}), dgate = FarTensor::zeros({far + 2 * matrix}),
             dup = FarTensor::zeros({far + 2 * matrix}), ddown = FarTensor::zeros({far + 2 * matrix});
  const Shape in{n.width, n.hidden}, out{n.hidden, n.width};
  const auto stack = [&](const FarTensor& far_tensor, Shape shape) {
    return MatrixStack{view_of(far_tensor.view().as<float>(), shape), far + matrix};
  };
  unsigned seed = 1;
  for (const FarTensor* weights : {&gate, &up, &down}) fill(weights->last(matrix), ++seed);
  const Floats gate1 = floats_of(gate.last(matrix)), up1 = floats_of(up.last(matrix)),
               down1 = floats_of(down.last(matrix));
  Floats y1(n.hidden), dx1(n.hidden), dgate1(matrix), dup1(matrix), ddown1(matrix);
  const auto run = [&](const GroupedMlp::Sizes& s, const TensorView& vx, const Ints& offsets,
                       const GroupedMlp::Weights& w, const TensorView& y, const TensorView& dx,
                       const GroupedMlp::Weights& dw) {
    const auto saved = FarTensor::zeros({static_cast<std::int64_t>(host->grouped_mlp->saved(s)) / 4 + 64}),
               workspace = FarTensor::zeros({static_cast<std::int64_t>(host->grouped_mlp->workspace(s)) / 4 + 64});
    const TensorView vo = view(offsets, {s.groups + 1});
    host->grouped_mlp->forward(host.stream, {vx, vo, w, y, saved.region(), workspace.region()});
    host->grouped_mlp->backward(host.stream, {vx, vo, w, vx, dx, dw, saved.region(), workspace.region()});
    host.finish();
  };
  const Shape one{1, n.hidden};
  run(small, view(row, one), {0, 1}, {{view(gate1, in)}, {view(up1, in)}, {view(down1, out)}}, view(y1, one),
      view(dx1, one), {{view(dgate1, in)}, {view(dup1, in)}, {view(ddown1, out)}});
  const auto y = FarTensor::sink({n.rows, n.hidden}, n.hidden), dx = FarTensor::sink({n.rows, n.hidden}, n.hidden);
  run(n, x.view(), {0, static_cast<std::int32_t>(n.rows - 1), static_cast<std::int32_t>(n.rows)},
      {stack(gate, in), stack(up, in), stack(down, out)}, y.view(), dx.view(),
      {stack(dgate, in), stack(dup, in), stack(ddown, out)});
  expect_same("y", y.last(n.hidden), y1);
  expect_same("dx", dx.last(n.hidden), dx1);
  expect_same("dgate", dgate.last(matrix), dgate1);
  expect_same("dup", dup.last(matrix), dup1);
  expect_same("ddown", ddown.last(matrix), ddown1);
}

TEST_F(Far, HeadLossWithManyTokensAndWithALargeVocabulary) {
  constexpr std::int64_t many = 524'290, hidden = 4'096;
  const Floats scale = {1.0f};
  const auto run = [&](const HeadLoss::Sizes& n, const TensorView& x, const TensorView& weight, const Ints& targets,
                       const TensorView& dx, const TensorView& dweight) {
    double loss = 0;
    Scratch workspace(host->head_loss->workspace(n));
    host->head_loss->forward_backward(host.stream, {x,
                                                    weight,
                                                    view(targets, {n.tokens}),
                                                    view_of(&loss, {1}),
                                                    view(scale, {1}),
                                                    dx,
                                                    dweight,
                                                    {},
                                                    workspace.region()});
    host.finish();
    return loss;
  };
  const auto large = FarTensor::zeros({many, hidden});
  fill(large.last(hidden), 1);
  const Floats row = floats_of(large.last(hidden)), weight = random_floats(2 * hidden, 2);
  const Shape one{1, hidden}, two{2, hidden};
  Floats dx1(hidden), dweight1(2 * hidden), dweight(2 * hidden);
  const double want = run({1, hidden, 2}, view(row, one), view(weight, two), {1}, view(dx1, one), view(dweight1, two));
  Ints targets(many, -1);
  targets.back() = 1;
  const auto dlarge = FarTensor::sink({many, hidden}, hidden);
  EXPECT_NEAR(run({many, hidden, 2}, large.view(), view(weight, two), targets, dlarge.view(), view(dweight, two)), want,
              1e-6);
  expect_same("dx", dlarge.last(hidden), dx1);
  expect_same("dweight", dweight, dweight1);
  // One token, whose target is the last word: all others have the logit 0.
  const Floats x = random_floats(hidden, 3);
  double logit = 0;
  for (std::int64_t i = 0; i < hidden; ++i) logit += static_cast<double>(x[i]) * row[i];
  const double sum = std::exp(logit) + static_cast<double>(many - 1);
  Floats dx(hidden), want_dweight(hidden);
  EXPECT_NEAR(run({1, hidden, many}, view(x, one), large.view(), {many - 1}, view(dx, one), dlarge.view()),
              std::log(sum) - logit, 1e-4);
  for (std::int64_t i = 0; i < hidden; ++i) {
    // On top of what the case before has left there.
    want_dweight[i] = dx1[i] + static_cast<float>(std::exp(logit) / sum - 1) * x[i];
  }
  expect_same("dweight", dlarge.last(hidden), want_dweight);
}

TEST_F(Far, Elementwise) {
  constexpr std::int64_t n = far + 1001;
  const auto a = FarTensor::zeros({n}), b = FarTensor::zeros({n}), y = FarTensor::sink({n}, 1000);
  fill(a.last(1000), 1);
  fill(b.last(1000), 2);
  Floats want;
  double squares = 0, sum = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    want.push_back(a.last(1000)[i] + b.last(1000)[i]);
    squares += static_cast<double>(a.last(1000)[i]) * a.last(1000)[i];
  }
  host->elementwise->add(host.stream, a.view(), b.view(), y.view());
  host->elementwise->square_sum(host.stream, a.view(), view_of(&sum, {1}));
  host.finish();
  expect_same("y", y.last(1000), want);
  EXPECT_NEAR(sum, squares, 1e-9);
}

TEST_F(Far, AdamW) {
  constexpr std::int64_t n = far + 1001, tail = 1000;
  const Floats scale = {1.0f};
  const Ints finite = {1};
  const auto update = [&](const TensorView& w, const TensorView& g, const TensorView& m, const TensorView& v) {
    host->adamw->update(host.stream, {w, g, m, v, 0.1, 0.9, 0.99, 1e-8, 0.01, 1, view(scale, {1}), view(finite, {1})});
    host.finish();
  };
  Floats w1 = random_floats(tail, 1), m1(tail), v1(tail);
  const Floats g1 = random_floats(tail, 2);
  const auto w = FarTensor::sink({n}, tail), m = FarTensor::sink({n}, tail), v = FarTensor::sink({n}, tail),
             g = FarTensor::zeros({n});
  std::ranges::copy(w1, w.last(tail).begin());
  std::ranges::copy(g1, g.last(tail).begin());
  update(view(w1, {tail}), view(g1, {tail}), view(m1, {tail}), view(v1, {tail}));
  update(w.view(), g.view(), m.view(), v.view());
  expect_same("weight", w.last(tail), w1);
  expect_same("exp_avg", m.last(tail), m1);
  expect_same("exp_avg_sq", v.last(tail), v1);
}

}  // namespace
}  // namespace ananke::host
