// The exponential, the logarithm, matrix products, and the checks of processor and BLAS.
#include "plugins/backend_host/operators/checks.h"
#include "plugins/backend_host/operators/gemm.h"
#include "plugins/backend_host/operators/row_math.h"
#include "tests/plugins/backend_host/operators/fixture.h"

namespace ananke::host {
namespace {

TEST(ExpOf, IsWithinItsBoundOverTheWholeRange) {
  double worst = 0;
  for (float x = -87.3f; x < 88.37f; x += 1.37e-3f) {
    const double want = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(exp_of(x)) - want) / want);
  }
  EXPECT_LT(worst, 1.3e-7);
}

TEST(ExpOf, KeepsZeroInfinityAndNan) {
  EXPECT_EQ(exp_of(0), 1);
  EXPECT_EQ(exp_of(-88), 0);
  EXPECT_EQ(exp_of(-INFINITY), 0);
  EXPECT_EQ(exp_of(89), INFINITY);
  EXPECT_EQ(exp_of(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(exp_of(std::nanf(""))));
}

TEST(LogOf, IsWithinItsBoundOverTheWholeRange) {
  const auto expect_near = [](float x) {
    const double want = std::log(static_cast<double>(x)), got = static_cast<double>(log_of(x));
    ASSERT_LE(std::abs(got - want), std::max(1e-7, 2e-7 * std::abs(want))) << x;
  };
  for (float x = std::numeric_limits<float>::min(); x < 3e38f; x *= 1.00137f) expect_near(x);
  for (float x = 0.5f; x < 2.0f; x += 1.3e-5f) expect_near(x);
  EXPECT_EQ(log_of(1), 0);
}

TEST(XLogX, IsZeroOfZeroAndKeepsNan) {
  const Floats x = {0, 1, 0.25f, 1e-40f, 0.5f, 0.125f, 1e-20f};
  EXPECT_NEAR(x_log_x(x.data(), std::ssize(x)), -(0.25 * 2 + 0.5 + 0.125 * 3) * std::log(2.0), 1e-7);
  EXPECT_EQ(x_log_x(x.data(), 2), 0);
  const Floats bad = {0.5f, std::nanf("")};
  EXPECT_TRUE(std::isnan(x_log_x(bad.data(), 2)));
}

TEST(Gemm, WritesOverWhatWasThereWhenBetaIsZeroEvenWithNothingToSum) {
  Floats c = nans(6);
  gemm(2, 3, 0, 1, {nullptr, 1}, {nullptr, 1}, 0, c.data(), 3);
  EXPECT_EQ(c, Floats(6));
  c = nans(6);
  const Floats a = {1, 2}, b = {3, 4, 5};
  gemm(2, 3, 1, 2, {a.data(), 1}, {b.data(), 3}, 0, c.data(), 3);
  EXPECT_EQ(c, (Floats{6, 8, 10, 12, 16, 20}));
  gemm(2, 3, 0, 1, {nullptr, 1}, {nullptr, 1}, 1, c.data(), 3);
  EXPECT_EQ(c, (Floats{6, 8, 10, 12, 16, 20}));
  gemm(0, 3, 1, 1, {nullptr, 1}, {b.data(), 3}, 0, nullptr, 3);
}

TEST(Tiles, CoverTheProductWhateverItsSize) {
  for (std::int64_t m : {1, 63, 64, 65, 513, 1000, 4099}) {
    for (std::int64_t n : {1, 64, 257, 2048}) {
      const Tiles tiles(m, n);
      EXPECT_GE(tiles.down * tiles.rows, m);
      EXPECT_LT((tiles.down - 1) * tiles.rows, m);
      EXPECT_GE(tiles.across * tiles.columns, n);
      EXPECT_LT((tiles.across - 1) * tiles.columns, n);
    }
  }
}

TEST(Checks, PassOnThisMachine) {
  check_cpu();
  check_blas();
}

}  // namespace
}  // namespace ananke::host
