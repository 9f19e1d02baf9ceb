// Permute and combine, grouped MLP.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/operators/reference/grouped_mlp.h"
#include "runtime/operators/reference/permute.h"
#include "tests/plugins/backend_host/operators/fixture.h"

namespace ananke::host {
namespace {

struct Permuted {
  Ints offsets, row_of_slot;
  Floats rows, dx, y, d_weighted, row_weights, dweights;
};

Ints some_experts(const reference::PermuteSizes& n) {
  Ints indices(n.tokens * n.k);
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int32_t>((i * i + i / 5) % n.experts);
  return indices;
}

Permuted permute(Host& host, const reference::PermuteSizes& n, const Ints& indices) {
  const std::int64_t slots = n.tokens * n.k;
  const Shape by_token{n.tokens, n.hidden}, by_row{slots, n.hidden}, choices{n.tokens, n.k};
  const Floats x = random_floats(n.tokens * n.hidden, 1), weights = random_floats(slots, 2);
  Permuted out{Ints(n.experts + 1, -1),
               Ints(slots, -1),
               nans(slots * n.hidden),
               nans(n.tokens * n.hidden),
               nans(n.tokens * n.hidden),
               nans(slots * n.hidden),
               nans(slots),
               nans(slots)};
  const Floats d_row_weights = random_floats(slots, 3);
  Scratch workspace(host->permute->workspace(slots, n.experts));
  const TensorView places = view(out.row_of_slot, {slots});
  host->permute->forward(host.stream,
                         {view(x, by_token), view(indices, choices), n.experts, view(out.rows, by_row),
                          view(out.offsets, {n.experts + 1}), places},
                         workspace.region());
  host->permute->backward(host.stream, {view(out.rows, by_row), places, view(out.dx, by_token),
                                        view(d_row_weights, {slots}), view(out.dweights, choices)});
  host->permute->combine_forward(host.stream,
                                 {view(out.rows, by_row), places, view(weights, choices), view(out.y, by_token)});
  host->permute->combine_backward(host.stream, {places, view(weights, choices), view(out.y, by_token),
                                                view(out.d_weighted, by_row), view(out.row_weights, {slots})});
  host.finish();
  return out;
}

TEST(HostPermute, MatchesTheReference) {
  Host host;
  for (const reference::PermuteSizes& n : {reference::PermuteSizes{0, 3, 2, 1},
                                           {1, 1, 1, 1},
                                           {5, 0, 3, 2},
                                           {7, 5, 3, 3},
                                           {211, 67, 13, 4},
                                           {9, 4, 50, 2}}) {
    const Ints indices = some_experts(n);
    const Permuted got = permute(host, n, indices);
    const Doubles x = to_doubles(random_floats(n.tokens * n.hidden, 1)),
                  weights = to_doubles(random_floats(n.tokens * n.k, 2)),
                  d_row_weights = to_doubles(random_floats(n.tokens * n.k, 3));
    Doubles rows(got.rows.size()), dx(x.size()), y(x.size()), d_weighted(rows.size()), row_weights(weights.size()),
        dweights(weights.size());
    Ints offsets(n.experts + 1), places(got.row_of_slot.size());
    reference::permute_forward(n, x.data(), indices.data(), rows.data(), offsets.data(), places.data());
    reference::permute_backward(n, rows.data(), places.data(), dx.data(), d_row_weights.data(), dweights.data());
    reference::combine_forward(n, rows.data(), places.data(), weights.data(), y.data());
    reference::combine_backward(n, places.data(), weights.data(), y.data(), d_weighted.data(), row_weights.data());
    EXPECT_EQ(got.offsets, offsets);
    EXPECT_EQ(got.row_of_slot, places);
    expect_close("rows", got.rows, rows, 0);
    expect_close("dx", got.dx, dx, 1e-6);
    expect_close("y", got.y, y, 1e-6);
    expect_close("d_weighted", got.d_weighted, d_weighted, 1e-6);
    expect_close("row_weights", got.row_weights, row_weights, 0);
    expect_close("dweights", got.dweights, dweights, 0);
  }
}

TEST(HostPermute, RefusesShapesThatDoNotFitAndExpertsThatDoNotExist) {
  Host host;
  const Floats x(6), rows(12);
  const Ints indices = {0, 1, 2, 3}, offsets(4), places(4);
  Scratch workspace(host->permute->workspace(4, 3));
  const auto forward = [&](const TensorView& vi, const TensorView& vr, std::int64_t experts) {
    host->permute->forward(host.stream, {view(x, {2, 3}), vi, experts, vr, view(offsets, {4}), view(places, {4})},
                           workspace.region());
  };
  expect_refused(
      [&] {
        forward(view(indices, {2, 2}), view(rows, {3, 4}), 3);
      },
      {"permute forward", "rows", "[3, 4]", "[2, 3]"});
  expect_refused(
      [&] {
        forward(view(indices, {4, 1}), view(rows, {4, 3}), 3);
      },
      {"permute forward", "indices", "[4, 1]", "[2, 2]"});
  expect_refused(
      [&] {
        forward(view(indices, {2, 2}), view(rows, {4, 3}), 2);
      },
      {"permute forward", "offsets", "[4]", "[3]"});
  forward(view(indices, {2, 2}), view(rows, {4, 3}), 3);
  expect_refused([&] { host.finish(); }, {"permute", "expert 3 of 3", "slot 3"});
}

TEST(HostPermute, GivesTheSameBitsWithAnyNumberOfThreads) {
  expect_same_bits_with_any_threads([](Host& host) {
    const reference::PermuteSizes n{601, 67, 13, 3};
    const Permuted got = permute(host, n, some_experts(n));
    return std::vector{got.rows, got.dx, got.y, got.d_weighted, got.row_weights, got.dweights};
  });
}

struct Mlp {
  GroupedMlp::Sizes n;
  Ints offsets;
  std::int64_t stride() const { return 3 * n.hidden * n.width + 5; }  // experts lie with something between them
  std::int64_t block() const { return n.hidden * n.width; }
  Floats x() const { return random_floats(n.rows * n.hidden, 1); }
  Floats weights() const { return random_floats(n.groups * stride(), 2); }
  Floats dy() const { return random_floats(n.rows * n.hidden, 3); }
  Floats row_weights() const { return random_floats(n.rows, 4); }
};

GroupedMlp::Weights stacks(const Mlp& mlp, const Floats& memory) {
  float* first = const_cast<float*>(memory.data());
  const auto stack = [&](std::int64_t at, Shape shape) {
    return MatrixStack{view_of(first + at * mlp.block(), shape), mlp.stride()};
  };
  return {stack(0, {mlp.n.width, mlp.n.hidden}), stack(1, {mlp.n.width, mlp.n.hidden}),
          stack(2, {mlp.n.hidden, mlp.n.width})};
}

struct Gradient {
  float before = 0.5f;  // in it
  bool overwrite = false;
};

// y, dx and gradients of the weights; of rows that go on with a weight each, theirs too. `again`: what backward needs
// is made by a forward that makes no y.
std::vector<Floats> run(Host& host, const Mlp& mlp, const Floats& weights, bool weighted = false, bool again = false,
                        const Gradient& gradient = {}) {
  const GroupedMlp::Sizes& n = mlp.n;
  const Floats x = mlp.x(), dy = mlp.dy(), row_weights = mlp.row_weights();
  Floats y(x.size(), 42.0f), dx(x.size(), 42.0f), dw(weights.size(), gradient.before), d_row_weights(n.rows, 42.0f);
  Scratch saved(host->grouped_mlp->saved(n)), workspace(host->grouped_mlp->workspace(n)),
      other(host->grouped_mlp->workspace(n)), made_again(host->grouped_mlp->saved(n));
  const Shape rows{n.rows, n.hidden};
  const TensorView offsets = view(mlp.offsets, {n.groups + 1});
  host->grouped_mlp->forward(
      host.stream, {view(x, rows), offsets, stacks(mlp, weights), view(y, rows), saved.region(), workspace.region()});
  host->grouped_mlp->forward(
      host.stream, {view(x, rows), offsets, stacks(mlp, weights), {}, made_again.region(), workspace.region()});
  GroupedMlp::Backward backward{view(x, rows),  offsets,         stacks(mlp, weights), view(dy, rows),
                                view(dx, rows), stacks(mlp, dw), saved.region(),       other.region()};
  if (again) backward.saved = made_again.region();
  backward.overwrite = gradient.overwrite;
  if (weighted) {
    backward.row_weights = view(row_weights, {n.rows});
    backward.d_row_weights = view(d_row_weights, {n.rows});
  }
  host->grouped_mlp->backward(host.stream, backward);
  host.finish();
  std::vector<Floats> results = {y, dx, dw};
  if (weighted) results.push_back(d_row_weights);
  return results;
}

void compare_mlp(const Mlp& mlp, bool weighted) {
  Host host;
  const reference::MlpSizes n{mlp.n.hidden, mlp.n.width, mlp.n.groups};
  const Doubles x = to_doubles(mlp.x()), w = to_doubles(mlp.weights()), dy = to_doubles(mlp.dy());
  const Doubles row_weights = to_doubles(mlp.row_weights());
  Doubles y(x.size(), 42), dx(x.size(), 42), dw(w.size()), d_row_weights(row_weights.size(), 42);
  const auto stack = [&](auto* first) {
    return reference::MlpWeights<std::remove_pointer_t<decltype(first)>>{
        first, first + mlp.block(), first + 2 * mlp.block(), mlp.stride(), mlp.stride(), mlp.stride()};
  };
  reference::grouped_mlp_forward<double>(n, x.data(), mlp.offsets.data(), stack(w.data()), y.data());
  reference::grouped_mlp_backward<double>(n, x.data(), mlp.offsets.data(), stack(w.data()), dy.data(), dx.data(),
                                          stack(dw.data()), weighted ? row_weights.data() : nullptr,
                                          d_row_weights.data());
  const std::vector<Floats> got = run(host, mlp, mlp.weights(), weighted);
  expect_close("y", got[0], y);
  expect_close("dx", got[1], dx);
  expect_close("gradients", got[2], dw, 5e-6, 0.5);
  if (weighted) expect_close("gradients of rows' weights", got[3], d_row_weights);
  EXPECT_EQ(run(host, mlp, mlp.weights(), weighted, true), got) << "made again";
}

TEST(HostGroupedMlp, MatchesTheReferenceAndLeavesRowsAndGroupsOutOfUseAlone) {
  for (const Mlp& mlp :
       {Mlp{{0, 3, 5, 1}, {0, 0}}, Mlp{{4, 3, 5, 0}, {0}}, Mlp{{1, 1, 1, 1}, {0, 1}}, Mlp{{7, 3, 5, 2}, {0, 0, 0}},
        Mlp{{9, 5, 7, 4}, {0, 0, 3, 3, 8}}, Mlp{{700, 13, 11, 3}, {0, 300, 301, 690}}, Mlp{{67, 37, 71, 1}, {0, 67}},
        Mlp{{6, 0, 3, 2}, {0, 2, 5}}, Mlp{{6, 3, 0, 2}, {0, 2, 5}}}) {
    compare_mlp(mlp, false);
    compare_mlp(mlp, true);
    if (testing::Test::HasFatalFailure()) FAIL() << mlp.n.rows << " rows, " << mlp.n.groups << " groups";
  }
}

// As if it had been zeroed, of groups without rows too; what lies between the experts stays.
TEST(HostGroupedMlp, WritesAGradientThatHoldsNothingYet) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Mlp& mlp : {Mlp{{0, 3, 5, 1}, {0, 0}}, Mlp{{7, 3, 5, 2}, {0, 0, 0}}, Mlp{{9, 5, 7, 4}, {0, 0, 3, 3, 8}},
                         Mlp{{700, 13, 11, 3}, {0, 300, 301, 690}}, Mlp{{300, 130, 67, 2}, {0, 0, 300}}}) {
    Host host;
    const Floats added = run(host, mlp, mlp.weights(), true, false, {0.0f, false})[2],
                 written = run(host, mlp, mlp.weights(), true, false, {nan, true})[2];
    for (std::size_t i = 0; i < added.size(); ++i) {
      const bool between = static_cast<std::int64_t>(i) % mlp.stride() >= 3 * mlp.block();
      ASSERT_TRUE(between ? std::isnan(written[i]) : written[i] == added[i]) << i << " of " << mlp.n.rows << " rows";
    }
  }
}

TEST(HostGroupedMlp, GivesTheSameBitsWithAnyNumberOfThreads) {
  expect_same_bits_with_any_threads([](Host& host) {
    const Mlp mlp{{900, 67, 131, 3}, {0, 600, 601, 900}};
    return run(host, mlp, mlp.weights(), true);
  });
}

TEST(HostGroupedMlp, LetsNanThroughAndKeepsItInItsGroup) {
  Host host;
  const Mlp mlp{{6, 5, 7, 3}, {0, 2, 3, 6}};
  for (std::int64_t place : {std::int64_t{3}, mlp.block() + 1, 2 * mlp.block() + 2}) {
    Floats weights = mlp.weights();
    weights[mlp.stride() + place] = std::nanf("");
    const std::vector<Floats> got = run(host, mlp, weights);
    for (int row = 0; row < 6; ++row) {
      EXPECT_EQ(has_nan(Floats(got[0].begin() + row * 5, got[0].begin() + row * 5 + 5)), row == 2)
          << row << " " << place;
    }
  }
}

TEST(HostGroupedMlp, RefusesShapesThatDoNotFitAndOffsetsThatAreNotAscending) {
  const Mlp mlp{{6, 5, 7, 2}, {0, 2, 6}};
  const Floats x = mlp.x(), weights = mlp.weights();
  const auto forward = [&](Host& host, const Ints& offsets, const GroupedMlp::Weights& w) {
    const GroupedMlp::Sizes n{6, 5, 7, static_cast<std::int64_t>(offsets.size()) - 1};
    Scratch saved(host->grouped_mlp->saved(n)), workspace(host->grouped_mlp->workspace(n));
    Floats y = x;
    host->grouped_mlp->forward(host.stream, {view(x, {6, 5}), view(offsets, {n.groups + 1}), w, view(y, {6, 5}),
                                             saved.region(), workspace.region()});
    host.finish();
  };
  GroupedMlp::Weights wrong = stacks(mlp, weights);
  wrong.down.first.shape = {7, 5};
  Host host;
  expect_refused([&] { forward(host, mlp.offsets, wrong); }, {"grouped_mlp forward", "down", "[7, 5]", "[5, 7]"});
  wrong = stacks(mlp, weights);
  wrong.up.stride = 34;
  expect_refused([&] { forward(host, mlp.offsets, wrong); }, {"grouped_mlp forward", "up", "[7, 5]", "34"});
  for (const Ints& offsets : {Ints{0, 4, 3}, Ints{0, 4, 7}, Ints{1, 4, 6}}) {
    Host other;
    expect_refused([&] { forward(other, offsets, stacks(mlp, weights)); }, {"grouped_mlp"});
  }
}

}  // namespace
}  // namespace ananke::host
