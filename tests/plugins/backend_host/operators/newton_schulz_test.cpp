#include "runtime/operators/reference/newton_schulz.h"

#include <algorithm>

#include "runtime/operators/reference/momentum.h"
#include "tests/plugins/backend_host/operators/fixture.h"

namespace ananke::host {
namespace {

using Precision = NewtonSchulz::Precision;

const reference::NewtonSchulzHyper hyper = {5, 3.4445, -4.7750, 2.0315, 1e-7};

float to_bf16(float value) {  // by arithmetic, not by bits: the spacing of bf16 at the value
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double spacing = std::ldexp(1.0, exponent - 8);
  return static_cast<float>(std::nearbyint(value / spacing) * spacing);
}

Floats run(Host& host, const Floats& matrices, const NewtonSchulz::Sizes& n, Precision precision = Precision::f32,
           int steps = hyper.steps, std::int32_t finite = 1) {
  Floats values = matrices;
  const Ints flag = {finite};
  const Scratch workspace(host->newton_schulz->workspace(n));
  host->newton_schulz->run(host.stream, {view(values, {n.count, n.rows, n.columns}), steps, hyper.a, hyper.b, hyper.c,
                                         hyper.eps, precision, view(flag, {1}), workspace.region()});
  host.finish();
  return values;
}

Doubles expected(const Floats& matrices, const NewtonSchulz::Sizes& n) {
  Doubles values = to_doubles(matrices);
  for (std::int64_t i = 0; i < n.count; ++i) {
    reference::newton_schulz(hyper, n.rows, n.columns, values.data() + i * n.rows * n.columns);
  }
  return values;
}

double largest_of(const Floats& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

TEST(HostNewtonSchulz, RefusesShapesThatDoNotFitAndSmallWorkspace) {
  Host host;
  Floats values(24);
  const Ints finite = {1};
  const std::size_t bytes = host->newton_schulz->workspace({2, 3, 4});
  const Scratch workspace(bytes);
  const auto call = [&](const TensorView& matrices, int steps, double eps, Region region, const TensorView& flag) {
    host->newton_schulz->run(host.stream, {matrices, steps, 1, 1, 1, eps, Precision::f32, flag, region});
  };
  const TensorView good = view(values, {2, 3, 4}), flag = view(finite, {1});
  expect_refused([&] { call(view(values, {6, 4}), 1, 1, workspace.region(), flag); }, {"newton_schulz", "[6, 4]", "3"});
  expect_refused([&] { call(good, -1, 1, workspace.region(), flag); }, {"newton_schulz", "-1 steps"});
  expect_refused([&] { call(good, 1, 0, workspace.region(), flag); }, {"newton_schulz", "eps 0"});
  expect_refused([&] { call(good, 1, 1, {workspace.region().data, bytes - 1}, flag); }, {"workspace"});
  expect_refused([&] { call(good, 1, 1, workspace.region(), view(values, {24})); }, {"finite", "i32"});
}

class HostNewtonSchulzSizes : public testing::TestWithParam<NewtonSchulz::Sizes> {};

TEST_P(HostNewtonSchulzSizes, MatchesTheReference) {
  const NewtonSchulz::Sizes n = GetParam();
  Host host;
  const Floats matrices = random_floats(n.count * n.rows * n.columns, 7);
  expect_close("matrices", run(host, matrices, n), expected(matrices, n), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostNewtonSchulzSizes,
                         testing::Values(NewtonSchulz::Sizes{0, 3, 4}, NewtonSchulz::Sizes{2, 0, 4},
                                         NewtonSchulz::Sizes{1, 1, 1}, NewtonSchulz::Sizes{3, 1, 17},
                                         NewtonSchulz::Sizes{2, 17, 1}, NewtonSchulz::Sizes{11, 13, 7},
                                         NewtonSchulz::Sizes{5, 5, 5}, NewtonSchulz::Sizes{2, 33, 129},
                                         NewtonSchulz::Sizes{1, 131, 97}, NewtonSchulz::Sizes{1, 150, 150}));

TEST(HostNewtonSchulz, MakesSingularValuesNearOne) {
  Host host;
  // A diagonal matrix stays one; its entries are its singular values.
  Floats diagonal(6 * 9, 0.0f);
  for (std::size_t i = 0; i < 6; ++i) diagonal[i * 9 + i] = 1.0f + static_cast<float>(i);
  const Floats got = run(host, diagonal, {1, 6, 9});
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t j = 0; j < 9; ++j) {
      if (i == j) {
        EXPECT_GT(got[i * 9 + j], 0.6f);
        EXPECT_LT(got[i * 9 + j], 1.3f);
      } else {
        EXPECT_EQ(got[i * 9 + j], 0.0f);
      }
    }
  }
}

TEST(HostNewtonSchulz, LeavesZerosAndDividesTinyMatricesByEps) {
  Host host;
  EXPECT_EQ(run(host, Floats(12, 0.0f), {1, 3, 4}), Floats(12, 0.0f));
  // Below eps the norm is not the divisor: the matrix stays small, and is no NaN.
  Floats tiny = random_floats(12, 5, 1e-12f);
  const Floats got = run(host, tiny, {1, 3, 4});
  expect_close("tiny", got, expected(tiny, {1, 3, 4}), 1e-5);
  EXPECT_LT(largest_of(got), 0.01);
  Floats huge = random_floats(12, 5, 1e30f);
  expect_close("huge", run(host, huge, {1, 3, 4}), expected(huge, {1, 3, 4}), 1e-5);
}

TEST(HostNewtonSchulz, WithoutStepsOnlyNormalises) {
  Host host;
  const Floats got = run(host, {3, 0, 0, 4}, {1, 2, 2}, Precision::f32, 0);
  EXPECT_EQ(got, (Floats{0.6f, 0, 0, 0.8f}));
}

TEST(HostNewtonSchulz, ChangesNothingWhenTheStepIsNotFinite) {
  Host host;
  const Floats matrices = random_floats(24, 3);
  EXPECT_EQ(run(host, matrices, {2, 3, 4}, Precision::f32, 5, 0), matrices);
}

// What a matrix becomes is its own affair: alone, in a batch, and at an address of another alignment.
TEST(HostNewtonSchulz, GivesAMatrixTheSameBitsInEveryBatch) {
  Host host;
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{7, 5}, {5, 7}, {70, 90}}) {
    const std::int64_t count = 13, area = rows * columns;
    const Floats all = random_floats(count * area, 9);
    const Floats together = run(host, all, {count, rows, columns});
    for (std::int64_t i = 0; i < count; ++i) {
      const Floats one(all.begin() + i * area, all.begin() + (i + 1) * area);
      const Floats alone = run(host, one, {1, rows, columns});
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + i * area)) << "matrix " << i;
    }
  }
}

TEST(HostNewtonSchulz, GivesTheSameBitsWithAnyNumberOfThreads) {
  expect_same_bits_with_any_threads([](Host& host) {
    return std::vector<Floats>{run(host, random_floats(9 * 20 * 30, 1), {9, 20, 30}),
                               run(host, random_floats(300 * 170, 2), {1, 300, 170})};
  });
}

// Rounded where bf16 arithmetic rounds: as far from f64 as bf16 is, and near the reference that rounds there.
TEST(HostNewtonSchulz, RoundsToBf16WhereAsked) {
  Host host;
  for (const NewtonSchulz::Sizes& n : {NewtonSchulz::Sizes{2, 16, 24}, NewtonSchulz::Sizes{2, 24, 16}}) {
    const Floats matrices = random_floats(n.count * n.rows * n.columns, 4);
    Floats want = matrices;
    for (std::int64_t i = 0; i < n.count; ++i) {
      reference::newton_schulz(hyper, n.rows, n.columns, want.data() + i * n.rows * n.columns, to_bf16);
    }
    const Floats got = run(host, matrices, n, Precision::bf16);
    expect_close("bf16", got, to_doubles(want), 0.03);
    for (const float value : got) EXPECT_EQ(value, to_bf16(value));
    EXPECT_NE(got, run(host, matrices, n));
    expect_close("f32", got, expected(matrices, n), 0.1);
  }
}

struct MomentumRun {
  Floats momentum, out, weight;
};

MomentumRun run_momentum(Host& host, std::int64_t n, double mu, bool nesterov, std::int32_t finite) {
  const Floats gradient = random_floats(n, 1), scale = {0.7f};
  const Ints flag = {finite};
  MomentumRun r{random_floats(n, 2), nans(n), random_floats(n, 3)};
  host->momentum->accumulate(host.stream, {view(gradient, {n}), view(r.momentum, {n}), view(r.out, {n}), mu, nesterov,
                                           view(scale, {1}), view(flag, {1})});
  host->momentum->apply(host.stream, {view(r.weight, {n}), view(gradient, {n}), 0.9, 0.25, view(flag, {1})});
  host.finish();
  return r;
}

TEST(HostMomentum, MatchesTheReference) {
  Host host;
  for (const std::int64_t n : {0, 1, 13, 40001}) {
    for (const double mu : {0.0, 0.25, 0.95}) {
      for (const bool nesterov : {false, true}) {
        const Doubles gradient = to_doubles(random_floats(n, 1));
        Doubles momentum = to_doubles(random_floats(n, 2)), weight = to_doubles(random_floats(n, 3));
        Doubles out(static_cast<std::size_t>(n));
        reference::momentum_accumulate(n, mu, nesterov, gradient.data(), static_cast<double>(0.7f), true,
                                       momentum.data(), out.data());
        reference::momentum_apply(n, 0.9, 0.25, gradient.data(), true, weight.data());
        const MomentumRun got = run_momentum(host, n, mu, nesterov, 1);
        expect_close("momentum", got.momentum, momentum, 1e-6);
        expect_close("out", got.out, out, 1e-6);
        expect_close("weight", got.weight, weight, 1e-6);
      }
    }
  }
}

TEST(HostMomentum, ChangesNothingWhenTheStepIsNotFinite) {
  Host host;
  const MomentumRun got = run_momentum(host, 13, 0.9, true, 0);
  EXPECT_EQ(got.momentum, random_floats(13, 2));
  EXPECT_EQ(got.weight, random_floats(13, 3));
  for (const float value : got.out) EXPECT_TRUE(std::isnan(value));
}

TEST(HostMomentum, RefusesShapesThatDoNotFit) {
  Host host;
  const Floats two(2), three(3), one(1);
  const Ints finite = {1};
  const TensorView v2 = view(two, {2}), v3 = view(three, {3}), scale = view(one, {1}), flag = view(finite, {1});
  expect_refused(
      [&] {
        host->momentum->accumulate(host.stream, {v2, v3, v2, 0.9, true, scale, flag});
      },
      {"momentum accumulate", "momentum", "[3]", "[2]"});
  expect_refused([&] { host->momentum->accumulate(host.stream, {v2, v2, v3, 0.9, true, scale, flag}); }, {"out"});
  expect_refused([&] { host->momentum->apply(host.stream, {v2, v3, 1, 1, flag}); }, {"momentum apply", "direction"});
}

}  // namespace
}  // namespace ananke::host
