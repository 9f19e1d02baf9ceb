// The reference router and its balance, for every rule: against finite differences, and the small cases whose right
// answers are known.
#include "runtime/operators/reference/router.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/operators/reference/router_balance.h"
#include "tests/runtime/operators/finite_differences.h"
#include "tests/runtime/operators/router_rules.h"

namespace ananke {
namespace {

using Ints = std::vector<std::int32_t>;

struct Chosen {
  Ints indices, counts;
  Doubles weights;
};

// One token whose logits are given.
Chosen choose(const Doubles& logits, std::int64_t k, const RouterRule& rule, const Doubles& bias = {}) {
  const std::int64_t experts = static_cast<std::int64_t>(logits.size());
  Chosen out{Ints(k), Ints(experts), Doubles(k)};
  const double x = 1;
  reference::router_forward({1, 1, experts, k, rule}, &x, logits.data(), bias.empty() ? nullptr : bias.data(), false,
                            out.indices.data(), out.weights.data(), out.counts.data());
  return out;
}

double logit(double p) { return std::log(p / (1 - p)); }

TEST(ReferenceRouter, HasTheGradientsOfItsForwardAndItsStatistics) {
  for (const RuleCase& rule : router_rules()) {
    SCOPED_TRACE(rule.name);
    const reference::RouterSizes n{4, 3, 8, 4, rule.rule};
    Doubles x = random_doubles(n.tokens * n.hidden, 1), gate = random_doubles(n.experts * n.hidden, 2);
    const Doubles dweights = random_doubles(n.tokens * n.k, 3), factors = random_doubles(n.experts + 1, 4);
    const Doubles bias = random_doubles(n.experts, 5);
    Doubles weights(dweights.size()), dx(x.size()), dgate(gate.size()), statistics(Router::statistics_size(n.experts));
    Ints indices(dweights.size()), counts(n.experts);
    reference::router_forward(n, x.data(), gate.data(), bias.data(), false, indices.data(), weights.data(),
                              counts.data());
    reference::router_backward(n, x.data(), gate.data(), indices.data(), dweights.data(), factors.data(), dx.data(),
                               dgate.data());
    const auto value = [&] {
      reference::router_forward<double>(n, x.data(), gate.data(), nullptr, true, indices.data(), weights.data(),
                                        counts.data(), statistics.data());
      double sum = inner(weights, dweights);
      for (std::int64_t e = 0; e <= n.experts; ++e) sum += factors[e] * statistics[n.experts + e];
      return sum;
    };
    expect_gradient("x", x, dx, value);
    expect_gradient("gate", gate, dgate, value);
  }
}

TEST(ReferenceRouter, TakesTheLargestFirstAndTiesToTheLowerIndex) {
  const Chosen chosen = choose({0, 2, 0, 2}, 3, {.normalise = false});
  EXPECT_EQ(chosen.indices, (Ints{1, 3, 0}));
  EXPECT_EQ(chosen.counts, (Ints{1, 1, 0, 1}));
}

// Scores .9 .1 .5 .6: the groups' sums are 1.0 and 1.1, so expert 0, whose score is the highest, is left out.
TEST(ReferenceRouter, KeepsTheGroupsWhoseTwoBestSumHighest) {
  const Doubles logits = {logit(0.9), logit(0.1), logit(0.5), logit(0.6)};
  const RouterRule limited{.score = RouterRule::Score::sigmoid,
                           .grouping = RouterRule::Grouping::groups_limited_top_k,
                           .groups = 2,
                           .kept_groups = 1};
  const Chosen chosen = choose(logits, 2, limited);
  EXPECT_EQ(chosen.indices, (Ints{3, 2}));
  EXPECT_NEAR(chosen.weights[0], 0.6 / 1.1, 1e-12);
  EXPECT_EQ(choose({0, 0, 0, 0}, 2, limited).indices, (Ints{0, 1})) << "groups that tie: the lower one";
}

TEST(ReferenceRouter, TakesAFixedNumberFromEveryGroup) {
  const RouterRule rule{.grouping = RouterRule::Grouping::top_k_per_group, .groups = 2};
  EXPECT_EQ(choose({9, 8, 7, 6, 0, 1, 3, 2}, 4, rule).indices, (Ints{0, 1, 6, 7}));
  EXPECT_EQ(choose({0, 0, 0, 0, 0, 0, 0, 0}, 4, rule).indices, (Ints{0, 1, 4, 5}));
}

TEST(ReferenceRouter, ChoosesByTheBiasAndWeighsWithoutIt) {
  const Doubles logits = {logit(0.5), logit(0.4), logit(0.3)};
  const Chosen chosen = choose(logits, 2, {.score = RouterRule::Score::sigmoid}, {-1, 0, 0.5});
  EXPECT_EQ(chosen.indices, (Ints{2, 1}));
  EXPECT_NEAR(chosen.weights[0], 0.3 / 0.7, 1e-12);
  EXPECT_NEAR(chosen.weights[1], 0.4 / 0.7, 1e-12);
}

TEST(ReferenceRouter, ScalesWeightsAfterNormalisingThem) {
  const Chosen chosen = choose({0, 0, 0, 0}, 2, {.scaling_factor = 2.5});
  EXPECT_EQ(chosen.weights, (Doubles{1.25, 1.25}));
  EXPECT_EQ(choose({0, 0, 0, 0}, 2, {.normalise = false, .scaling_factor = 2}).weights, (Doubles{0.5, 0.5}));
}

// Sigmoids that underflow have a sum of 0: the weights are 0, not 0 / 0.
TEST(ReferenceRouter, SurvivesDenominatorsNearZero) {
  const Chosen chosen = choose({-2000, -3000, -1500}, 2, {.score = RouterRule::Score::sigmoid});
  EXPECT_EQ(chosen.weights, (Doubles{0, 0}));
  const Chosen small = choose({-60, -61, -80}, 2, {.score = RouterRule::Score::sigmoid});
  const double a = std::exp(-60.0), b = std::exp(-61.0);
  EXPECT_NEAR(small.weights[0], a / (a + b + 1e-20), 1e-9);
}

TEST(ReferenceRouter, DealsTokensInTurnWhenTheBalanceIsForced) {
  const reference::RouterSizes n{4, 1, 4, 3, {.forced_balance = true}};
  const Doubles x(4, 1.0), gate = {5, 0, 0, 0};
  Doubles weights(12);
  Ints indices(12), counts(4);
  reference::router_forward<double>(n, x.data(), gate.data(), nullptr, false, indices.data(), weights.data(),
                                    counts.data());
  EXPECT_EQ(indices, (Ints{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(counts, (Ints{3, 3, 3, 3}));
}

// An even choice and even probabilities cost coefficient x k, the least there is.
TEST(ReferenceRouterBalance, CostsKTimesTheCoefficientWhenAllIsEven) {
  const reference::BalanceSizes n{2, 4};
  Doubles statistics;
  for (int layer = 0; layer < 2; ++layer) {
    for (double value : {3.0, 3.0, 3.0, 3.0, 1.5, 1.5, 1.5, 1.5, 24.0, 8.0}) statistics.push_back(value);
  }
  Doubles total(6), factors(5), losses(2);
  reference::balance_collect(n, statistics.data(), 6, 5, total.data());
  EXPECT_EQ(total, (Doubles{6, 6, 6, 6, 6, 5}));
  reference::balance_factors(n, statistics.data(), total.data(), 1.0 / 5, 0.01, 0.5, factors.data(), losses.data());
  EXPECT_NEAR(losses[0], 0.01 * 2, 1e-15);
  EXPECT_NEAR(losses[1], 0.5 * (24.0 / 6 + 24.0 / 6), 1e-15);
  total[4] = 0;
  losses = {7, 8};
  reference::balance_factors(n, statistics.data(), total.data(), 0, 0.01, 0.5, factors.data(), losses.data());
  EXPECT_EQ(factors, Doubles(5, 0.0)) << "no token anywhere";
  EXPECT_EQ(losses, (Doubles{7, 8}));
}

TEST(ReferenceRouterBalance, MovesTheBiasBySignWithTheMeanRemoved) {
  std::vector<float> bias(8);
  const Doubles load = {6, 2, 0, 0, /*entropy*/ 1, 4, 0, 0, 4, 1};
  const std::vector<float> rate = {1e-3F, 0};
  reference::balance_update_bias({2, 4}, load.data(), rate.data(), true, bias.data());
  const Doubles want = {-1.25e-3, -0.25e-3, 0.75e-3, 0.75e-3, 0, 0, 0, 0};
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(static_cast<double>(bias[i]), want[i], 1e-9) << i;
  const std::vector<float> kept = bias;
  reference::balance_update_bias({2, 4}, load.data(), rate.data(), false, bias.data());
  EXPECT_EQ(bias, kept) << "a step that is not finite";
}

}  // namespace
}  // namespace ananke
