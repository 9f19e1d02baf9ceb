// Router and its balance, permute and combine, grouped MLP.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/plugins/backend_cuda/operators/bench.h"

namespace ananke::cuda {
namespace {

struct CudaRouter : CudaOperator {};
struct CudaRouterBalance : CudaOperator {};
struct CudaPermute : CudaOperator {};
struct CudaGroupedMlp : CudaOperator {};

using Rule = RouterRule;

struct RouterCase {
  Router::Sizes n;
  Rule rule;
  bool bias = false, statistics = true, factors = true, replay = false;
  bool exact = true;  // numbers of the gate have few bits
};

// Where c.exact, logits are exact in f32, so that the host and the device decide from the same numbers; many are equal,
// and ties show.
Results route(Bench& bench, const RouterCase& c, const Ints& replayed) {
  const Router::Sizes& n = c.n;
  const Shape slots{n.tokens, n.k}, by_token{n.tokens, n.hidden};
  const Tensor x = bench.activation(exact_floats(n.tokens * n.hidden, 1), by_token);
  const auto numbers = c.exact ? exact_floats(n.experts * n.hidden, 2) : random_floats(n.experts * n.hidden, 2);
  const Tensor gate = bench.tensor(numbers, {n.experts, n.hidden});
  const Tensor bias = bench.tensor(random_floats(n.experts, 5, 0.3f), {n.experts});
  const Tensor indices = bench.tensor(replayed, slots), weights = bench.blank(DType::f32, slots);
  const Tensor counts = bench.blank(DType::i32, {n.experts});
  const Tensor statistics = bench.blank(DType::f64, {Router::statistics_size(n.experts)});
  const Tensor dweights = bench.tensor(random_floats(n.tokens * n.k, 3), slots);
  const Tensor factors = bench.tensor(random_floats(n.experts + 1, 4), {n.experts + 1});
  const Tensor dx = bench.activation(random_floats(n.tokens * n.hidden, 6), by_token);
  const Tensor dgate = bench.tensor(random_floats(n.experts * n.hidden, 7), {n.experts, n.hidden});
  const Region saved = bench.scratch(bench->router->saved(n));
  const Region workspace = bench.scratch(bench->router->workspace(n));
  const TensorView none{};
  bench->router->forward(bench.stream(), {x, gate, c.bias ? bias.view : none, c.rule, c.replay, indices, weights,
                                          counts, c.statistics ? statistics.view : none, saved, workspace});
  bench->router->backward(bench.stream(), {x, gate, c.rule, indices, weights, dweights, c.factors ? factors.view : none,
                                           dx, dgate, saved, workspace});
  Results results = {exact("indices", bench.values<std::int32_t>(indices)),
                     exact("counts", bench.values<std::int32_t>(counts)),
                     result("weights", bench.floats(weights), 2e-6, 2e-6), result("dx", bench.floats(dx), 1e-5, 0.01),
                     result("dgate", bench.floats(dgate), 1e-5, 1e-5)};
  if (c.statistics) results.push_back(result("statistics", bench.values<double>(statistics), 1e-6, 1e-6));
  return results;
}

void compare_routes(const RouterCase& c) {
  Ints indices(static_cast<std::size_t>(c.n.tokens * c.n.k), -7);
  for (std::size_t i = 0; c.replay && i < indices.size(); ++i) {
    indices[i] = static_cast<std::int32_t>((i * 5 + i / 3) % static_cast<std::size_t>(c.n.experts));
  }
  compare("router of " + std::to_string(c.n.tokens) + " tokens and " + std::to_string(c.n.experts) + " experts",
          [&](Bench& bench) { return route(bench, c, indices); });
}

TEST_F(CudaRouter, MatchesTheHostByEveryRule) {
  const Rule softmax{}, plain{.normalise = false, .scaling_factor = 2.5};
  const Rule sigmoid{.score = Rule::Score::sigmoid, .scaling_factor = 2.5};
  const Rule limited{
      .score = Rule::Score::sigmoid, .grouping = Rule::Grouping::groups_limited_top_k, .groups = 4, .kept_groups = 2};
  const Rule per_group{.grouping = Rule::Grouping::top_k_per_group, .groups = 4};
  const Rule forced{.forced_balance = true};
  for (const RouterCase& c : {RouterCase{{0, 3, 4, 2}, softmax},
                              {{1, 1, 1, 1}, softmax},
                              {{3, 0, 4, 2}, softmax},
                              {{131, 67, 13, 4}, softmax},
                              {{131, 67, 13, 13}, plain, true},
                              {{67, 64, 128, 8}, softmax, true, false, false},
                              {{67, 64, 128, 8}, sigmoid, true},
                              {{45, 24, 64, 6}, limited, true},
                              {{45, 24, 64, 6}, limited, false, true, false},
                              {{45, 24, 64, 8}, per_group, true},
                              {{45, 24, 64, 8}, forced},
                              {{45, 24, 64, 8}, softmax, false, true, true, true},
                              {{45, 16, 200, 8}, softmax, true},
                              {{45, 16, 200, 8}, sigmoid},
                              {{31, 8, 64, 40}, softmax},
                              {{301, 16, 512, 22}, sigmoid, true},
                              {{9, 8, 1500, 3}, softmax, true}}) {
    compare_routes(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaRouter, MatchesTheHostWhereWarpsHaveManyTokens) {
  for (const RouterCase& c : {RouterCase{{17000, 4, 5, 2}, {}, true}, {{135001, 1, 3, 1}, {}}}) {
    compare_routes(c);
    if (HasFatalFailure()) return;
  }
}

// Also where x is bf16 are logits as near to those of the host, with the gate in f32, as f32 sums are.
TEST_F(CudaRouter, TakesAllBitsOfTheGate) {
  for (const RouterCase& c : {RouterCase{.n = {131, 96, 13, 4}, .rule = {}, .exact = false},
                              {.n = {64, 200, 24, 3}, .rule = {.score = Rule::Score::sigmoid}, .exact = false}}) {
    compare_routes(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaRouter, TakesNanAsTheHostDoes) {
  const auto run = [](Bench& bench) {
    Floats values = exact_floats(8 * 4, 1);
    values[5] = values[12] = std::nanf("");
    const Tensor x = bench.tensor(values, {8, 4}), gate = bench.tensor(exact_floats(6 * 4, 2), {6, 4});
    const Tensor indices = bench.blank(DType::i32, {8, 2}), weights = bench.blank(DType::f32, {8, 2});
    const Tensor counts = bench.blank(DType::i32, {6});
    const Region saved = bench.scratch(bench->router->saved({8, 4, 6, 2}));
    const Region workspace = bench.scratch(bench->router->workspace({8, 4, 6, 2}));
    bench->router->forward(bench.stream(), {x, gate, {}, {}, false, indices, weights, counts, {}, saved, workspace});
    return Results{exact("indices", bench.values<std::int32_t>(indices)), result("weights", bench.floats(weights))};
  };
  compare("router with NaN", run, {DType::f32});
}

TEST_F(CudaRouter, SaysWhichReplayedExpertIsNone) {
  const RouterCase c{.n = {2, 3, 4, 2}, .rule = {}, .replay = true};
  expect_refused(
      [&](Bench& bench) {
        route(bench, c, {0, 1, 4, 2});
      },
      {"router", "replayed expert 4 of 4 for token 1"});
}

Results balance(Bench& bench, std::int64_t layers, std::int64_t experts, std::int64_t microbatches,
                std::int64_t tokens) {
  const std::int64_t row = Router::statistics_size(experts);
  Doubles numbers;
  for (std::int64_t i = 0; i < microbatches * layers; ++i) {
    for (std::int64_t e = 0; e < row; ++e) {
      numbers.push_back(e < experts ? static_cast<double>((i * 7 + e * e) % 11) : 0.37 * static_cast<double>(e % 5));
    }
  }
  const Tensor all = bench.tensor(numbers, {microbatches, layers, row});
  numbers.resize(static_cast<std::size_t>(layers * row));
  const Tensor statistics = bench.tensor(numbers, {layers, row}), total = bench.blank(DType::f64, {experts + 2});
  const Tensor scale = bench.tensor(Floats{0.125f}, {1}), factors = bench.blank(DType::f32, {experts + 1});
  const Tensor losses = bench.tensor(Doubles{1, 2}, {2}), load = bench.blank(DType::f64, {layers, experts + 1});
  const Tensor rate = bench.tensor(Floats(static_cast<std::size_t>(layers), 1e-3f), {layers});
  const Tensor go = bench.tensor(Ints{1}, {1}), stop = bench.tensor(Ints{0}, {1});
  const Tensor bias = bench.tensor(random_floats(layers * experts, 1), {layers, experts});
  const Tensor summary = bench.blank(DType::f64, {layers, RouterBalance::summary_size});
  const Tensor plain = bench.blank(DType::f64, {layers, RouterBalance::summary_size});
  RouterBalance& operators = *bench->router_balance;
  operators.collect(bench.stream(), {statistics, tokens, 17, total});
  operators.factors(bench.stream(), {statistics, total, scale, 0.01, 0.001, factors, losses});
  operators.load(bench.stream(), {all, load});
  operators.update_bias(bench.stream(), {load, rate, go, bias});
  operators.update_bias(bench.stream(), {load, rate, stop, bias});
  operators.summarise(bench.stream(), {load, bias, summary});
  operators.summarise(bench.stream(), {load, {}, plain});
  return {exact("total", bench.values<double>(total)),
          result("factors", bench.floats(factors), 1e-7),
          result("losses", bench.values<double>(losses), 1e-12),
          result("load", bench.values<double>(load), 1e-12),
          exact("bias", bench.floats(bias)),
          result("summary", bench.values<double>(summary), 1e-12),
          result("plain", bench.values<double>(plain), 1e-12)};
}

TEST_F(CudaRouterBalance, MatchesTheHost) {
  for (const auto& [layers, experts, microbatches, tokens] :
       {std::array<std::int64_t, 4>{1, 1, 1, 5}, {3, 7, 2, 11}, {2, 300, 3, 100}, {5, 64, 1, 0}, {0, 3, 2, 4}}) {
    compare("balance of " + std::to_string(experts),
            [&](Bench& bench) { return balance(bench, layers, experts, microbatches, tokens); }, {DType::f32});
  }
}

struct PermuteCase {
  std::int64_t tokens, hidden, experts, k;
};

Results permute(Bench& bench, const PermuteCase& n, const Ints& chosen) {
  const std::int64_t slots = n.tokens * n.k;
  const Shape by_token{n.tokens, n.hidden}, by_row{slots, n.hidden}, choices{n.tokens, n.k};
  const Tensor x = bench.activation(random_floats(n.tokens * n.hidden, 1), by_token);
  const Tensor indices = bench.tensor(chosen, choices), weights = bench.tensor(random_floats(slots, 2), choices);
  const Tensor rows = bench.blank_activation(by_row), offsets = bench.blank(DType::i32, {n.experts + 1});
  const Tensor places = bench.blank(DType::i32, {slots}), dx = bench.blank_activation(by_token);
  const Tensor y = bench.blank_activation(by_token), d_weighted = bench.blank_activation(by_row);
  const Tensor dy = bench.activation(random_floats(n.tokens * n.hidden, 3), by_token);
  const Tensor dweights = bench.blank(DType::f32, choices), row_weights = bench.blank(DType::f32, {slots});
  const Tensor d_row_weights = bench.tensor(random_floats(slots, 4), {slots});
  const Region workspace = bench.scratch(bench->permute->workspace(slots, n.experts));
  bench->permute->forward(bench.stream(), {x, indices, n.experts, rows, offsets, places}, workspace);
  bench->permute->backward(bench.stream(), {rows, places, dx, d_row_weights, dweights});
  bench->permute->combine_forward(bench.stream(), {rows, places, weights, y});
  bench->permute->combine_backward(bench.stream(), {places, weights, dy, d_weighted, row_weights});
  return {exact("offsets", bench.values<std::int32_t>(offsets)),
          exact("places", bench.values<std::int32_t>(places)),
          exact("rows", bench.floats(rows)),
          result("dx", bench.floats(dx), 1e-6, 0.01),
          result("y", bench.floats(y), 1e-6, 0.01),
          exact("d_weighted", bench.floats(d_weighted)),
          exact("row_weights", bench.floats(row_weights)),
          exact("dweights", bench.floats(dweights))};
}

Ints some_experts(const PermuteCase& n) {
  Ints indices(static_cast<std::size_t>(n.tokens * n.k));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    indices[i] = static_cast<std::int32_t>((i * i + i / 5) % static_cast<std::size_t>(n.experts));
  }
  return indices;
}

TEST_F(CudaPermute, MatchesTheHost) {
  for (const PermuteCase& n : {PermuteCase{0, 3, 2, 1},
                               {1, 1, 1, 1},
                               {5, 0, 3, 2},
                               {7, 5, 3, 3},
                               {211, 67, 13, 4},
                               {9, 4, 50, 2},
                               {1021, 16, 128, 8},
                               {1500, 8, 1, 3},
                               {33000, 8, 61, 8},
                               {300, 64, 513, 5}}) {
    compare("permute of " + std::to_string(n.tokens) + " tokens",
            [&](Bench& bench) { return permute(bench, n, some_experts(n)); });
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaPermute, SaysWhichExpertIsNone) {
  expect_refused(
      [](Bench& bench) {
        permute(bench, {2, 3, 3, 2}, {0, 1, 2, 3});
      },
      {"permute", "expert 3 of 3 in slot 3"});
}

struct MlpCase {
  GroupedMlp::Sizes n;
  Ints offsets;
  bool known = false;  // to the caller
  bool apart = false;  // up's matrices do not lie behind gate's
  bool weighted = false, made_again = false, overwrite = false;
};

// Random numbers in rows of groups, NaN behind them.
Floats rows_of_groups(const MlpCase& c, std::int64_t columns, unsigned seed) {
  Floats values = random_floats(c.n.rows * columns, seed);
  const std::int64_t used = std::min<std::int64_t>(c.offsets.back(), c.n.rows) * columns;
  std::fill(values.begin() + used, values.end(), std::numeric_limits<float>::quiet_NaN());
  return values;
}

Results grouped_mlp(Bench& bench, const MlpCase& c) {
  const GroupedMlp::Sizes& n = c.n;
  const std::int64_t block = n.hidden * n.width, stride = 3 * block + 8;  // experts lie with something between them
  const Shape rows{n.rows, n.hidden};
  const Tensor x = bench.activation(rows_of_groups(c, n.hidden, 1), rows);
  const Tensor offsets = bench.tensor(c.offsets, {n.groups + 1});
  const Tensor weights = bench.activation(random_floats(n.groups * stride, 2), {n.groups * stride});
  const Tensor dweights = bench.tensor(Floats(static_cast<std::size_t>(n.groups * stride), 0.5f), {n.groups * stride});
  const Tensor dy = bench.activation(rows_of_groups(c, n.hidden, 3), rows);
  const Tensor y = bench.activation(Floats(static_cast<std::size_t>(n.rows * n.hidden), 42.0f), rows);
  const Tensor dx = bench.activation(Floats(static_cast<std::size_t>(n.rows * n.hidden), 42.0f), rows);
  const auto stack = [&](const Tensor& all, std::int64_t at, Shape shape) {
    if (n.groups == 0) return MatrixStack{};
    return MatrixStack{all.view.slice(at * block, block).reshaped(shape), stride};
  };
  const auto stacks = [&](const Tensor& all) {
    return GroupedMlp::Weights{stack(all, c.apart ? 1 : 0, {n.width, n.hidden}),
                               stack(all, c.apart ? 0 : 1, {n.width, n.hidden}), stack(all, 2, {n.hidden, n.width})};
  };
  const Region saved = bench.scratch(bench->grouped_mlp->saved(n));
  const Region workspace = bench.scratch(bench->grouped_mlp->workspace(n));
  const Region again = bench.scratch(bench->grouped_mlp->workspace(n));
  std::vector<std::int64_t> known;
  if (c.known) known.assign(c.offsets.begin(), c.offsets.end());
  bench->grouped_mlp->forward(bench.stream(), {x, offsets, stacks(weights), y, saved, workspace, known});
  GroupedMlp::Backward backward{x, offsets, stacks(weights), dy, dx, stacks(dweights), saved, again, known};
  const Tensor row_weights = bench.tensor(rows_of_groups(c, 1, 4), {n.rows});
  const Tensor d_row_weights = bench.tensor(Floats(static_cast<std::size_t>(n.rows), 42.0f), {n.rows});
  if (c.weighted) {
    backward.row_weights = row_weights;
    backward.d_row_weights = d_row_weights;
  }
  if (c.made_again) {
    backward.saved = bench.scratch(bench->grouped_mlp->saved(n));
    bench->grouped_mlp->forward(bench.stream(), {x, offsets, stacks(weights), {}, backward.saved, workspace, known});
  }
  backward.overwrite = c.overwrite;
  bench->grouped_mlp->backward(bench.stream(), backward);
  return {result("d_row_weights", bench.floats(d_row_weights), 1e-5, 0.02), result("y", bench.floats(y), 1e-5, 0.02),
          result("dx", bench.floats(dx), 1e-5, 0.02), result("dweights", bench.floats(dweights), 1e-5, 0.02)};
}

TEST_F(CudaGroupedMlp, MatchesTheHost) {
  for (const MlpCase& c : {MlpCase{{0, 3, 4, 2}, {0, 0, 0}},
                           {{5, 3, 4, 0}, {0}},
                           {{1, 1, 1, 1}, {0, 1}},
                           {{7, 5, 3, 3}, {0, 0, 7, 7}},
                           {{64, 32, 48, 1}, {0, 64}},
                           {{64, 32, 48, 1}, {0, 64}, true},
                           {{90, 32, 48, 2}, {0, 7, 71}, true},
                           {{200, 64, 128, 5}, {0, 1, 1, 64, 129, 190}},
                           {{333, 67, 37, 4}, {0, 127, 128, 300, 331}},
                           {{333, 67, 37, 4}, {0, 127, 128, 300, 331}, false, true},
                           {{200, 64, 128, 5}, {0, 1, 1, 64, 129, 190}, true, true},
                           {{200, 64, 128, 5}, {0, 1, 1, 64, 129, 190}, true, false, true},
                           {{333, 67, 37, 4}, {0, 127, 128, 300, 331}, false, true, true, true},
                           {{64, 32, 48, 1}, {0, 64}, true, false, false, true},
                           {{0, 3, 4, 2}, {0, 0, 0}, false, false, false, false, true},
                           {{333, 67, 37, 4}, {0, 127, 127, 300, 331}, false, true, true, false, true},
                           {{200, 64, 128, 5}, {0, 1, 1, 64, 129, 190}, true, false, true, false, true},
                           {{50, 16, 24, 3}, {0, 0, 0, 0}}}) {
    compare("grouped_mlp of " + std::to_string(c.n.rows) + " rows",
            [&](Bench& bench) { return grouped_mlp(bench, c); });
    if (HasFatalFailure()) return;
  }
}

// Sizes that kernels for compute capability 9.0 take: tiles of 128 rows and 256 columns with ends of all kinds.
const MlpCase aligned_cases[] = {{{64, 32, 48, 1}, {0, 64}},
                                 {{130, 8, 8, 2}, {0, 1, 130}},
                                 {{700, 136, 264, 6}, {0, 0, 129, 129, 320, 511, 640}},
                                 {{700, 136, 264, 6}, {0, 63, 128, 256, 321, 576, 700}, true, false, true},
                                 {{700, 136, 264, 6}, {0, 0, 0, 0, 0, 0, 700}, false, false, true, true},
                                 {{700, 136, 264, 6}, {0, 0, 129, 129, 320, 511, 511}, false, false, true, false, true},
                                 {{700, 136, 264, 6}, {0, 127, 127, 127, 127, 127, 127}, false, false, true},
                                 {{700, 136, 264, 6}, {0, 0, 0, 333, 333, 333, 333}, false, false, true},
                                 {{300, 72, 520, 4}, {0, 0, 0, 0, 0}, false, false, true},
                                 {{300, 72, 520, 4}, {0, 65, 65, 255, 299}, false, false, true, true},
                                 {{1024, 512, 320, 3}, {0, 384, 640, 1024}, false, false, true}};

TEST_F(CudaGroupedMlp, MatchesTheHostWithoutReadingOffsets) {
  const auto device = cuda_bench(DType::bf16);
  for (const MlpCase& c : aligned_cases) {
    compare_on(
        *device, "grouped_mlp of " + std::to_string(c.n.rows) + " rows",
        [&](Bench& bench) { return grouped_mlp(bench, c); }, ~std::size_t{0});
    if (HasFatalFailure()) return;
  }
  if (!compute_capability_9()) GTEST_SKIP() << "offsets are read where the device is not of compute capability 9.0";
  EXPECT_EQ(device->reads(), 0u);
}

// What is kept and what is made again are the same bits, by kernels that make the activation as well and by others.
TEST_F(CudaGroupedMlp, GivesTheSameBitsWhereActivationsAreMadeAgain) {
  for (const GroupedKernels kernels : {GroupedKernels::sm90, GroupedKernels::cublaslt}) {
    const auto device = cuda_bench(DType::bf16, AttentionChoice::own, false, kernels);
    for (MlpCase c : aligned_cases) {
      c.made_again = false;
      const Results kept = grouped_mlp(*device, c);
      c.made_again = true;
      const Results again = grouped_mlp(*device, c);
      device->check_guards();
      device->clear();
      for (std::size_t i = 0; i < kept.size(); ++i) {
        for (std::size_t j = 0; j < kept[i].values.size(); ++j) {
          ASSERT_EQ(std::bit_cast<std::uint64_t>(kept[i].values[j]), std::bit_cast<std::uint64_t>(again[i].values[j]))
              << kept[i].name << "[" << j << "] of " << c.n.rows << " rows";
        }
      }
    }
  }
}

TEST_F(CudaGroupedMlp, MatchesTheHostByCublasLt) {
  const auto device = cuda_bench(DType::bf16, AttentionChoice::own, false, GroupedKernels::cublaslt);
  for (const MlpCase& c : aligned_cases) {
    compare_on(
        *device, "grouped_mlp of " + std::to_string(c.n.rows) + " rows by cuBLASLt",
        [&](Bench& bench) { return grouped_mlp(bench, c); }, ~std::size_t{0});
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(device->reads(), 0u);
}

TEST_F(CudaGroupedMlp, SaysWhichOffsetsAreWrong) {
  expect_refused(
      [](Bench& bench) {
        grouped_mlp(bench, {{5, 16, 8, 2}, {0, 4, 6}});
      },
      {"grouped_mlp", "group 1 has rows [4, 6) of 5"}, DType::bf16);
  expect_refused(
      [](Bench& bench) {
        grouped_mlp(bench, {{5, 3, 4, 2}, {0, 4, 6}});
      },
      {"grouped_mlp", "group 1 has rows [4, 6) of 5"});
  expect_refused(
      [](Bench& bench) {
        grouped_mlp(bench, {{5, 3, 4, 2}, {1, 4, 5}});
      },
      {"grouped_mlp", "offsets begin at 1"});
}

}  // namespace
}  // namespace ananke::cuda
