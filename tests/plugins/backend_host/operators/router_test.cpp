// The host's router against the reference, rule by rule.
#include "runtime/operators/reference/router.h"

#include <algorithm>
#include <set>

#include "tests/plugins/backend_host/operators/fixture.h"
#include "tests/runtime/operators/router_rules.h"

namespace ananke::host {
namespace {

using Rule = RouterRule;

struct Input {
  Router::Sizes n;
  Rule rule;
  Floats x, gate, bias, factors;
  Ints replayed;  // empty: decide

  Input(const Router::Sizes& sizes, const Rule& how, bool biased = false)
      : n(sizes),
        rule(how),
        x(random_floats(n.tokens * n.hidden, 1)),
        gate(random_floats(n.experts * n.hidden, 2)),
        factors(random_floats(n.experts + 1, 4)) {
    if (biased) bias = random_floats(n.experts, 5, 0.3f);
  }
  Floats dweights() const { return random_floats(n.tokens * n.k, 3); }
};

struct Routed {
  Ints indices, counts;
  Floats weights, dx, dgate;
  Doubles statistics;
};

Routed route(Host& host, const Input& in) {
  const Router::Sizes& n = in.n;
  const Floats dweights = in.dweights();
  Routed out{in.replayed,
             Ints(n.experts, -5),
             nans(n.tokens * n.k),
             Floats(n.tokens * n.hidden, 2.0f),
             Floats(n.experts * n.hidden, 0.5f),
             Doubles(Router::statistics_size(n.experts), 42)};
  const bool replay = !in.replayed.empty();
  if (!replay) out.indices.assign(n.tokens * n.k, -7);
  Scratch saved(host->router->saved(n)), workspace(host->router->workspace(n));
  const TensorView x = view(in.x, {n.tokens, n.hidden}), gate = view(in.gate, {n.experts, n.hidden});
  const TensorView bias = in.bias.empty() ? TensorView{} : view(in.bias, {n.experts});
  const TensorView factors = in.factors.empty() ? TensorView{} : view(in.factors, {n.experts + 1});
  const Shape slots{n.tokens, n.k};
  host->router->forward(host.stream,
                        {x, gate, bias, in.rule, replay, view(out.indices, slots), view(out.weights, slots),
                         view(out.counts, {n.experts}), view(out.statistics, {Router::statistics_size(n.experts)}),
                         saved.region(), workspace.region()});
  host->router->backward(host.stream, {x, gate, in.rule, view(out.indices, slots), view(out.weights, slots),
                                       view(dweights, slots), factors, view(out.dx, {n.tokens, n.hidden}),
                                       view(out.dgate, {n.experts, n.hidden}), saved.region(), workspace.region()});
  host.finish();
  return out;
}

// Where two values that are chosen by are as good as equal, f32 and f64 may choose differently: then the host's
// decision is judged by the values it chose, and the rest by its own decision.
void expect_same_choice(const Input& in, const Routed& got, Ints& wanted) {
  const Doubles x = to_doubles(in.x), gate = to_doubles(in.gate);
  for (std::int64_t t = 0; t < in.n.tokens; ++t) {
    const Ints mine(got.indices.begin() + t * in.n.k, got.indices.begin() + (t + 1) * in.n.k);
    const Ints theirs(wanted.begin() + t * in.n.k, wanted.begin() + (t + 1) * in.n.k);
    if (mine == theirs) continue;
    const reference::RouterSizes n{in.n.tokens, in.n.hidden, in.n.experts, in.n.k, in.rule};
    const reference::RouterScores<double> scores = reference::router_scores(n, x.data(), gate.data(), t);
    for (std::int64_t j = 0; j < in.n.k; ++j) {
      const auto value = [&](std::int32_t e) { return scores.s[e] + (in.bias.empty() ? 0.0 : double{in.bias[e]}); };
      ASSERT_NEAR(value(mine[j]), value(theirs[j]), 1e-6) << "token " << t;
      wanted[t * in.n.k + j] = mine[j];
    }
  }
}

void compare(const Input& in) {
  Host host;
  const Router::Sizes& n = in.n;
  const Doubles x = to_doubles(in.x), gate = to_doubles(in.gate), bias = to_doubles(in.bias),
                factors = to_doubles(in.factors), dweights = to_doubles(in.dweights());
  const reference::RouterSizes r{n.tokens, n.hidden, n.experts, n.k, in.rule};
  const bool replay = !in.replayed.empty();
  Ints indices = in.replayed, counts(n.experts);
  indices.resize(n.tokens * n.k);
  Doubles weights(indices.size()), dx(x.size()), dgate(gate.size()), statistics(Router::statistics_size(n.experts));
  const auto forward = [&](bool decided) {
    reference::router_forward(r, x.data(), gate.data(), bias.empty() ? nullptr : bias.data(), decided, indices.data(),
                              weights.data(), counts.data(), statistics.data());
  };
  forward(replay);
  const Routed got = route(host, in);
  expect_same_choice(in, got, indices);
  forward(true);
  reference::router_backward(r, x.data(), gate.data(), indices.data(), dweights.data(),
                             factors.empty() ? nullptr : factors.data(), dx.data(), dgate.data());
  EXPECT_EQ(got.indices, indices);
  EXPECT_EQ(got.counts, counts);
  expect_close("weights", got.weights, weights);
  expect_close("dx", got.dx, dx, 4e-6, 2);
  expect_close("dgate", got.dgate, dgate, 6e-6, 0.5);
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    EXPECT_NEAR(got.statistics[i], statistics[i], 2e-6 * (1 + std::abs(statistics[i]))) << "statistics[" << i << "]";
  }
}

TEST(HostRouter, MatchesTheReferenceForEveryRule) {
  for (const RuleCase& rule : router_rules()) {
    for (const Router::Sizes& n : {Router::Sizes{0, 3, 8, 4}, {1, 1, 8, 4}, {67, 33, 16, 4}, {601, 20, 8, 4}}) {
      for (const bool biased : {false, true}) {
        SCOPED_TRACE(rule.name + (biased ? ", biased, " : ", ") + std::to_string(n.tokens) + " tokens");
        Input in(n, rule.rule, biased);
        compare(in);
        for (std::int64_t i = 0; i < n.tokens * n.k; ++i)
          in.replayed.push_back(static_cast<std::int32_t>((7 * i + i / 3) % n.experts));
        in.factors.clear();
        compare(in);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(HostRouter, MatchesTheReferenceForOddSizes) {
  for (const Rule::Score score : {Rule::Score::softmax, Rule::Score::sigmoid}) {
    for (const Router::Sizes& n : {Router::Sizes{0, 3, 2, 1}, {1, 1, 1, 1}, {5, 7, 3, 3}, {257, 9, 13, 1}}) {
      SCOPED_TRACE(n.tokens);
      compare(Input(n, {.score = score}));
      compare(Input(n, {.score = score, .normalise = false}, true));
    }
  }
  compare(Input({33, 5, 9, 3}, {.grouping = Rule::Grouping::top_k_per_group, .groups = 3}));
  compare(Input({33, 5, 6, 3}, {.grouping = Rule::Grouping::groups_limited_top_k, .groups = 3, .kept_groups = 3}));
  compare(Input({33, 5, 6, 4}, {.grouping = Rule::Grouping::groups_limited_top_k, .groups = 3, .kept_groups = 2}));
  compare(Input({33, 5, 4, 4}, {.grouping = Rule::Grouping::top_k_per_group, .groups = 1}));
}

// Logits by hand: one token, hidden size 1.
Input of_logits(const Floats& logits, std::int64_t k, const Rule& rule, const Floats& bias = {}) {
  Input in({1, 1, static_cast<std::int64_t>(logits.size()), k}, rule);
  in.x = {1};
  in.gate = logits;
  in.bias = bias;
  return in;
}

float logit(float p) { return std::log(p / (1 - p)); }

TEST(HostRouter, TakesTheLargestFirstTiesToTheLowerIndex) {
  Host host;
  const Routed got = route(host, of_logits({0, 2, 0, 2}, 3, {}));
  EXPECT_EQ(got.indices, (Ints{1, 3, 0}));
  EXPECT_EQ(got.counts, (Ints{1, 1, 0, 1}));
  const Rule limited{.grouping = Rule::Grouping::groups_limited_top_k, .groups = 4, .kept_groups = 2};
  EXPECT_EQ(route(host, of_logits(Floats(8, 0.0f), 3, limited)).indices, (Ints{0, 1, 2}));
  const Rule each{.grouping = Rule::Grouping::top_k_per_group, .groups = 4};
  EXPECT_EQ(route(host, of_logits(Floats(8, 0.0f), 4, each)).indices, (Ints{0, 2, 4, 6}));
}

TEST(HostRouter, LeavesOutTheHighestExpertWhenItsGroupIsNotKept) {
  Host host;
  const Rule rule{
      .score = Rule::Score::sigmoid, .grouping = Rule::Grouping::groups_limited_top_k, .groups = 2, .kept_groups = 1};
  const Routed got = route(host, of_logits({logit(0.9f), logit(0.1f), logit(0.5f), logit(0.6f)}, 2, rule));
  EXPECT_EQ(got.indices, (Ints{3, 2}));
}

TEST(HostRouter, StaysValidAmongNanWithEveryRule) {
  for (const RuleCase& rule : router_rules()) {
    for (int place = 0; place < 8; ++place) {
      Host host;
      Floats logits = {0, 1, 2, 0, 1, 2, 0, 1};
      logits[place] = std::nanf("");
      const Routed got = route(host, of_logits(logits, 4, rule.rule, Floats(8, 0.1f)));
      const std::set<std::int32_t> different(got.indices.begin(), got.indices.end());
      EXPECT_EQ(different.size(), 4u) << rule.name;
      for (const std::int32_t e : got.indices) EXPECT_TRUE(e >= 0 && e < 8) << rule.name;
      EXPECT_TRUE(has_nan(got.weights) || !different.contains(place)) << rule.name;
      EXPECT_TRUE(has_nan(got.dgate)) << rule.name << ": the gradient must tell";
    }
  }
}

TEST(HostRouter, GivesFiniteWeightsAndGradientsWhenAllScoresVanish) {
  Host host;
  for (const float shift : {-50.0f, -70.0f, -87.0f, -100.0f, -1e4f, 50.0f, 1e4f}) {
    const Routed got = route(host, of_logits({shift, shift - 1, shift + 1}, 2, {.score = Rule::Score::sigmoid}));
    for (const Floats* values : {&got.weights, &got.dx, &got.dgate}) {
      for (const float value : *values) EXPECT_TRUE(std::isfinite(value)) << shift;
    }
    for (const double value : got.statistics) EXPECT_TRUE(std::isfinite(value)) << shift;
    if (shift <= -100) { EXPECT_EQ(got.weights, (Floats{0, 0})); }
  }
  // A softmax chosen by its bias alone.
  const Routed biased = route(host, of_logits({200, 0, 0}, 2, {}, {-2, 0, 0}));
  EXPECT_EQ(biased.indices, (Ints{1, 2}));
  EXPECT_EQ(biased.weights, (Floats{0, 0}));
  for (const float value : biased.dgate) EXPECT_TRUE(std::isfinite(value));
}

TEST(HostRouter, SpreadsForcedTokensEvenlyWhateverTheScores) {
  Host host;
  Input in({12, 3, 8, 2}, {.forced_balance = true}, true);
  const Routed got = route(host, in);
  EXPECT_EQ(got.counts, Ints(8, 3));
  for (std::int32_t slot = 0; slot < 24; ++slot) EXPECT_EQ(got.indices[slot], slot % 8);
  in.replayed = Ints(24, 5);
  EXPECT_EQ(route(host, in).indices, in.replayed) << "a replayed decision stands";
}

TEST(HostRouter, RefusesShapesThatDoNotFitAndReplayedExpertsThatDoNotExist) {
  Host host;
  const Floats x(6), gate(12), weights(4), bias(4);
  const Doubles statistics(10);
  const Ints indices(4), counts(4), too_many(10), outside = {0, 1, 4, 0};
  Scratch saved(host->router->saved({2, 3, 4, 2})), workspace(host->router->workspace({2, 3, 4, 2}));
  Router::Forward right{view(x, {2, 3}),
                        view(gate, {4, 3}),
                        {},
                        {},
                        false,
                        view(indices, {2, 2}),
                        view(weights, {2, 2}),
                        view(counts, {4}),
                        {},
                        saved.region(),
                        workspace.region()};
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    Router::Forward wrong = right;
    change(wrong);
    expect_refused([&] { host->router->forward(host.stream, wrong); }, words);
  };
  refused([&](auto& a) { a.gate = view(gate, {3, 4}); }, {"router forward", "gate", "[3, 4]", "[3, 3]"});
  refused([&](auto& a) { a.indices = view(indices, {1, 4}); }, {"router forward", "indices", "[1, 4]", "[2, 4]"});
  refused([&](auto& a) { a.indices = view(too_many, {2, 5}); }, {"router forward", "k = 5", "4 experts"});
  refused([&](auto& a) { a.bias = view(bias, {2, 2}); }, {"router forward", "bias", "[2, 2]", "[4]"});
  refused([&](auto& a) { a.statistics = view(statistics, {2, 5}); }, {"router forward", "statistics", "[10]"});
  refused([&](auto& a) { a.rule.groups = 3; }, {"router forward", "4 experts in 3 groups"});
  const auto grouped = [](Rule::Grouping grouping, std::int64_t groups, std::int64_t kept) {
    return [=](auto& a) { a.rule = {.grouping = grouping, .groups = groups, .kept_groups = kept}; };
  };
  refused(grouped(Rule::Grouping::groups_limited_top_k, 4, 2), {"k = 2 of 2 of 4 groups of 1 experts"});
  refused(grouped(Rule::Grouping::groups_limited_top_k, 2, 3), {"k = 2 of 3 of 2 groups"});
  refused(grouped(Rule::Grouping::top_k_per_group, 4, 1), {"k = 2 from 4 groups of 1 experts"});
  right.indices = view(outside, {2, 2});
  right.replay = true;
  host->router->forward(host.stream, right);
  expect_refused([&] { host.finish(); }, {"router", "replayed expert 4 of 4", "token 1"});
}

TEST(HostRouter, GivesTheSameBitsWithAnyNumberOfThreads) {
  for (const Rule::Score score : {Rule::Score::softmax, Rule::Score::sigmoid}) {
    expect_same_bits_with_any_threads([&](Host& host) {
      const Routed got = route(
          host, Input({701, 65, 18, 4},
                      {.score = score, .grouping = Rule::Grouping::groups_limited_top_k, .groups = 3, .kept_groups = 2},
                      true));
      const Floats statistics(got.statistics.begin(), got.statistics.end());
      return std::vector{got.weights, got.dx, got.dgate, statistics};
    });
  }
}

}  // namespace
}  // namespace ananke::host
