// Newton-Schulz: the operator against the host's, and the kernel for compute capability 9.0 product by product.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/sm90/newton_schulz_steps.h"
#include "tests/plugins/backend_cuda/operators/bench.h"

namespace ananke::cuda {
namespace {

struct CudaNewtonSchulz : CudaOperator {};

constexpr double step_a = 3.4445, step_b = -4.775, step_c = 2.0315;

struct SchulzCase {
  std::int64_t count, rows, columns;
  int steps;
  NewtonSchulz::Precision precision;
};

Results newton_schulz(Bench& bench, const SchulzCase& n, std::int32_t go) {
  Floats values = random_floats(n.count * n.rows * n.columns, 1);
  if (n.count > 1) std::fill_n(values.begin(), n.rows * n.columns, 0.0f);  // one of zeros
  const Tensor matrices = bench.tensor(values, {n.count, n.rows, n.columns}), finite = bench.tensor(Ints{go}, {1});
  const Region workspace = bench.scratch(bench->newton_schulz->workspace({n.count, n.rows, n.columns}));
  bench->newton_schulz->run(bench.stream(),
                            {matrices, n.steps, step_a, step_b, step_c, 1e-7, n.precision, finite, workspace});
  const bool f32 = n.precision == NewtonSchulz::Precision::f32;
  return {result("matrices", bench.floats(matrices), go == 0 ? 0 : f32 ? 1e-4 : 0.06)};
}

void compare_with_host(const SchulzCase& n, std::int32_t go) {
  compare("newton_schulz " + std::to_string(n.rows) + " x " + std::to_string(n.columns),
          [&](Bench& bench) { return newton_schulz(bench, n, go); }, {DType::f32});
}

TEST_F(CudaNewtonSchulz, MatchesTheHost) {
  using enum NewtonSchulz::Precision;
  for (const auto precision : {f32, bf16}) {
    for (const SchulzCase& n : {SchulzCase{0, 3, 4, 5, precision},
                                {1, 1, 1, 5, precision},
                                {3, 4, 4, 5, precision},
                                {2, 67, 131, 5, precision},
                                {3, 129, 64, 5, precision},
                                {2, 72, 136, 5, precision},
                                {2, 136, 72, 4, precision},
                                {2, 31, 37, 0, precision},
                                {5, 256, 96, 3, precision}}) {
      for (const std::int32_t go : {1, 0}) {
        compare_with_host(n, go);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Large enough for the kernel of this backend's own.
TEST_F(CudaNewtonSchulz, MatchesTheHostOnLargeMatrices) {
  for (const SchulzCase& n : {SchulzCase{1, 384, 384, 5, NewtonSchulz::Precision::bf16},
                              {3, 392, 536, 5, NewtonSchulz::Precision::bf16},
                              {2, 1288, 424, 4, NewtonSchulz::Precision::bf16},
                              {2, 776, 808, 1, NewtonSchulz::Precision::bf16},
                              {2, 440, 392, 0, NewtonSchulz::Precision::bf16}}) {
    for (const std::int32_t go : {1, 0}) {
      compare_with_host(n, go);
      if (HasFatalFailure()) return;
    }
  }
}

void expect_same_alone(std::int64_t count, std::int64_t rows, std::int64_t columns) {
  const std::int64_t area = rows * columns;
  const Floats one = random_floats(area, 1), other = random_floats(area, 2);
  const auto run = [&](const Floats& values, std::int64_t n) {
    const auto bench = cuda_bench(DType::f32);
    const Tensor matrices = bench->tensor(values, {n, rows, columns}), finite = bench->tensor(Ints{1}, {1});
    const Region workspace = bench->scratch(bench->operators().newton_schulz->workspace({n, rows, columns}));
    bench->operators().newton_schulz->run(
        bench->stream(), {matrices, 5, step_a, step_b, step_c, 1e-7, NewtonSchulz::Precision::bf16, finite, workspace});
    return bench->floats(matrices);
  };
  Floats all;
  for (std::int64_t i = 0; i < count; ++i)
    all.insert(all.end(), (i % 3 == 0 ? one : other).begin(), (i % 3 == 0 ? one : other).end());
  const Floats together = run(all, count), alone[] = {run(one, 1), run(other, 1)};
  for (std::int64_t i = 0; i < count; ++i) {
    ASSERT_TRUE(std::equal(alone[0].begin(), alone[0].end(), together.begin() + i * area) == (i % 3 == 0)) << i;
    ASSERT_TRUE(std::equal(alone[1].begin(), alone[1].end(), together.begin() + i * area) == (i % 3 != 0)) << i;
  }
}

TEST_F(CudaNewtonSchulz, GivesAMatrixTheSameBitsAloneAndAmongOthers) {
  expect_same_alone(3, 96, 160);
  expect_same_alone(5, 520, 392);
  expect_same_alone(259, 384, 392);  // more than are computed at a time
}

// One step of the kernel. Each product is compared with sums in f64 of what the product before has given.
struct Step {
  Floats x, a, b, y;
};
Step run_step(Bench& bench, const sm90::NewtonSchulzSteps& kernel, const Floats& values, std::int64_t count,
              std::int64_t s, std::int64_t l) {
  const Tensor x = bench.activation(values, {count, s, l}), y = bench.blank(DType::bf16, {count, s, l});
  const Tensor a = bench.blank(DType::bf16, {count, s, s}), b = bench.blank(DType::bf16, {count, s, s});
  const std::int64_t ints = sm90::NewtonSchulzSteps::progress_ints(count);
  const Tensor progress = bench.tensor(Ints(static_cast<std::size_t>(ints), 0x7f7f7f7f), {ints});
  kernel.run(raw(bench.stream()),
             {count, s, l, x.view.data, y.view.data, a.view.data, b.view.data, static_cast<int*>(progress.view.data)},
             1, step_a, step_b, step_c);
  return {bench.floats(x), bench.floats(a), bench.floats(b), bench.floats(y)};
}

// Rows of `got` [s, columns] against beta add + alpha sum_k left[row, k] right(k, column).
template <class Right>
void expect_product(const char* what, std::int64_t s, std::int64_t columns, std::int64_t terms, const float* got,
                    const float* left, const Right& right, double alpha, const float* add, double beta) {
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < s; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      double sum = 0, size = 0;
      for (std::int64_t k = 0; k < terms; ++k) {
        const double term = static_cast<double>(left[r * terms + k]) * static_cast<double>(right(k, c));
        sum += term;
        size += std::abs(term);
      }
      const double added = beta == 0 ? 0 : beta * static_cast<double>(add[r * columns + c]), want = alpha * sum + added;
      const double error = std::abs(static_cast<double>(got[r * columns + c]) - want);
      const bool close = error <= std::abs(want) / 200 + (std::abs(alpha) * size + std::abs(added)) * 1e-5;
      if (!close && wrong++ == 0) {
        ADD_FAILURE() << what << " at " << r << ", " << c << ": " << got[r * columns + c] << " and not " << want;
      }
    }
  }
  EXPECT_EQ(wrong, 0) << what << " of " << s * columns;
}

void expect_step(const Step& step, std::int64_t i, std::int64_t s, std::int64_t l) {
  const float *x = step.x.data() + i * s * l, *y = step.y.data() + i * s * l;
  const float *a = step.a.data() + i * s * s, *b = step.b.data() + i * s * s;
  expect_product(
      "A", s, s, l, a, x, [&](std::int64_t k, std::int64_t c) { return x[c * l + k]; }, 1, nullptr, 0);
  expect_product(
      "B", s, s, s, b, a, [&](std::int64_t k, std::int64_t c) { return a[k * s + c]; }, step_c, a, step_b);
  expect_product(
      "X", s, l, s, y, b, [&](std::int64_t k, std::int64_t c) { return x[k * l + c]; }, 1, x, step_a);
  for (const float* m : {a, b}) {
    std::int64_t asymmetric = 0;
    for (std::int64_t r = 0; r < s; ++r) {
      for (std::int64_t c = 0; c < r; ++c) asymmetric += std::memcmp(m + r * s + c, m + c * s + r, sizeof(float)) != 0;
    }
    EXPECT_EQ(asymmetric, 0) << (m == a ? "A" : "B");
  }
}

TEST_F(CudaNewtonSchulz, KernelOfItsOwnIsRightProductByProduct) {
  if (!compute_capability_9()) GTEST_SKIP() << "kernels for compute capability 9.0 alone";
  const auto bench = cuda_bench(DType::bf16);
  const sm90::NewtonSchulzSteps kernel(DeviceFacts::of(0));
  struct Shape {
    std::int64_t count, s, l;
  };
  for (const Shape& n : {Shape{1, 8, 8},
                         {1, 64, 64},
                         {2, 72, 88},
                         {1, 128, 256},
                         {3, 136, 136},
                         {1, 256, 256},
                         {2, 264, 520},
                         {1, 328, 392},
                         {1, 488, 496}}) {
    ASSERT_TRUE(kernel.take(n.s, n.l));
    SCOPED_TRACE(std::to_string(n.count) + " x " + std::to_string(n.s) + " x " + std::to_string(n.l));
    const Floats values = random_floats(n.count * n.s * n.l, 3, 0.1f);
    const Step first = run_step(*bench, kernel, values, n.count, n.s, n.l);
    for (std::int64_t i = 0; i < n.count; ++i) expect_step(first, i, n.s, n.l);
    const Step second = run_step(*bench, kernel, values, n.count, n.s, n.l);
    EXPECT_TRUE(first.a == second.a && first.b == second.b && first.y == second.y) << "differs when run again";
    if (HasFailure()) return;
  }
  EXPECT_FALSE(kernel.take(12, 16));
  EXPECT_FALSE(kernel.take(16, 12));
  EXPECT_FALSE(kernel.take(16, 8));
  EXPECT_FALSE(kernel.take(0, 8));
}

}  // namespace
}  // namespace ananke::cuda
