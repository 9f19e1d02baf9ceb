#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "runtime/operators/arguments.h"
#include "runtime/operators/validate.h"

namespace ananke::arguments {
namespace {

void check_rule(const char* op, const Router::Sizes& n, const RouterRule& rule) {
  ANANKE_CHECK(n.k >= 1 && n.k <= n.experts, "{}: k = {} of {} experts", op, n.k, n.experts);
  ANANKE_CHECK(rule.groups >= 1 && n.experts % rule.groups == 0, "{}: {} experts in {} groups", op, n.experts,
               rule.groups);
  const std::int64_t size = n.experts / rule.groups;
  switch (rule.grouping) {
    case RouterRule::Grouping::none: break;
    case RouterRule::Grouping::groups_limited_top_k:
      ANANKE_CHECK(
          rule.kept_groups >= 1 && rule.kept_groups <= rule.groups && size >= 2 && n.k <= rule.kept_groups * size,
          "{}: k = {} of {} of {} groups of {} experts", op, n.k, rule.kept_groups, rule.groups, size);
      break;
    case RouterRule::Grouping::top_k_per_group:
      ANANKE_CHECK(n.k % rule.groups == 0 && n.k / rule.groups <= size, "{}: k = {} from {} groups of {} experts", op,
                   n.k, rule.groups, size);
      break;
  }
}

Router::Sizes sizes_of(const char* op, const TensorView& x, const TensorView& gate, const TensorView& indices,
                       const RouterRule& rule, DType elements) {
  expect_rank(op, "x", x, 2);
  expect_rank(op, "gate", gate, 2);
  expect_rank(op, "indices", indices, 2);
  const Router::Sizes n{x.shape[0], x.shape[1], gate.shape[0], indices.shape[1]};
  expect(op, "x", x, elements, {n.tokens, n.hidden});
  expect(op, "gate", gate, {n.experts, n.hidden});
  expect(op, "indices", indices, DType::i32, {n.tokens, n.k});
  check_rule(op, n, rule);
  return n;
}

}  // namespace

Router::Sizes check(const Router::Forward& a, DType elements) {
  constexpr const char* op = "router forward";
  const Router::Sizes n = sizes_of(op, a.x, a.gate, a.indices, a.rule, elements);
  expect_or_empty(op, "bias", a.bias, {n.experts});
  expect(op, "weights", a.weights, {n.tokens, n.k});
  expect(op, "counts", a.counts, DType::i32, {n.experts});
  expect_or_empty(op, "statistics", a.statistics, DType::f64, {Router::statistics_size(n.experts)});
  return n;
}

Router::Sizes check(const Router::Backward& a, DType elements) {
  constexpr const char* op = "router backward";
  const Router::Sizes n = sizes_of(op, a.x, a.gate, a.indices, a.rule, elements);
  expect(op, "weights", a.weights, {n.tokens, n.k});
  expect(op, "dweights", a.dweights, {n.tokens, n.k});
  expect_or_empty(op, "factors", a.factors, {n.experts + 1});
  expect(op, "dx", a.dx, elements, {n.tokens, n.hidden});
  expect(op, "dgate", a.dgate, {n.experts, n.hidden});
  return n;
}

namespace {

// Of statistics [L, 2E + 2].
BalanceSizes sizes_of_statistics(const char* op, const TensorView& statistics) {
  expect_rank(op, "statistics", statistics, 2);
  const std::int64_t row = statistics.shape[1], experts = (row - 2) / 2;
  ANANKE_CHECK(experts >= 1 && row == Router::statistics_size(experts), "{}: statistics are {}", op,
               to_string(statistics.shape));
  expect(op, "statistics", statistics, DType::f64, {statistics.shape[0], row});
  return {statistics.shape[0], experts, row};
}

// Of load [L, E + 1].
BalanceSizes sizes_of_load(const char* op, const TensorView& load) {
  expect_rank(op, "load", load, 2);
  expect(op, "load", load, DType::f64, load.shape);
  ANANKE_CHECK(load.shape[1] >= 2, "{}: load is {}", op, to_string(load.shape));
  return {load.shape[0], load.shape[1] - 1, load.shape[1]};
}

}  // namespace

BalanceSizes check(const RouterBalance::Collect& a) {
  constexpr const char* op = "router balance collect";
  const BalanceSizes n = sizes_of_statistics(op, a.statistics);
  expect(op, "total", a.total, DType::f64, {n.experts + 2});
  return n;
}

BalanceSizes check(const RouterBalance::Factors& a) {
  constexpr const char* op = "router balance factors";
  const BalanceSizes n = sizes_of_statistics(op, a.statistics);
  expect(op, "total", a.total, DType::f64, {n.experts + 2});
  expect(op, "scale", a.scale, {1});
  expect(op, "factors", a.factors, {n.experts + 1});
  expect(op, "losses", a.losses, DType::f64, {2});
  return n;
}

BalanceSizes check(const RouterBalance::Load& a) {
  constexpr const char* op = "router balance load";
  expect_rank(op, "statistics", a.statistics, 3);
  const Shape flat{a.statistics.shape[0] * a.statistics.shape[1], a.statistics.shape[2]};
  BalanceSizes n = sizes_of_statistics(op, a.statistics.reshaped(flat));
  n.layers = a.statistics.shape[1];
  expect(op, "load", a.load, DType::f64, {n.layers, n.experts + 1});
  return n;
}

BalanceSizes check(const RouterBalance::UpdateBias& a) {
  constexpr const char* op = "router balance update_bias";
  const BalanceSizes n = sizes_of_load(op, a.load);
  expect(op, "rate", a.rate, {n.layers});
  expect(op, "finite", a.finite, DType::i32, {1});
  expect(op, "bias", a.bias, {n.layers, n.experts});
  return n;
}

BalanceSizes check(const RouterBalance::Summarise& a) {
  constexpr const char* op = "router balance summarise";
  const BalanceSizes n = sizes_of_load(op, a.load);
  expect_or_empty(op, "bias", a.bias, {n.layers, n.experts});
  expect(op, "summary", a.summary, DType::f64, {n.layers, RouterBalance::summary_size});
  return n;
}

namespace {

// `by_token` is [T, H] and `by_row` [T * k, H], whichever direction data goes.
PermuteSizes sizes_of(const char* op, const char* token_name, const TensorView& by_token, const char* row_name,
                      const TensorView& by_row, const TensorView& row_of_slot, DType elements) {
  expect_rank(op, token_name, by_token, 2);
  expect_rank(op, row_name, by_row, 2);
  const std::int64_t tokens = by_token.shape[0], slots = by_row.shape[0];
  ANANKE_CHECK(tokens == 0 ? slots == 0 : slots % tokens == 0, "{}: {} {} for {} {}", op, row_name,
               to_string(by_row.shape), token_name, to_string(by_token.shape));
  ANANKE_CHECK(slots <= std::numeric_limits<std::int32_t>::max(), "{}: {} rows do not fit row_of_slot", op, slots);
  const PermuteSizes n{tokens, by_token.shape[1], tokens == 0 ? 0 : slots / tokens};
  expect(op, token_name, by_token, elements, {n.tokens, n.hidden});
  expect(op, row_name, by_row, elements, {slots, n.hidden});
  expect(op, "row_of_slot", row_of_slot, DType::i32, {slots});
  return n;
}

// Where there are no tokens, any k is right.
Shape choices(const PermuteSizes& n, const TensorView& by_choice) {
  return {n.tokens, n.tokens == 0 ? by_choice.shape[1] : n.k};
}

void check_weights(const char* op, const char* name, const TensorView& weights, const PermuteSizes& n) {
  expect_rank(op, name, weights, 2);
  expect(op, name, weights, choices(n, weights));
}

}  // namespace

PermuteSizes check(const Permute::Forward& a, DType elements) {
  constexpr const char* op = "permute forward";
  const PermuteSizes n = sizes_of(op, "x", a.x, "rows", a.rows, a.row_of_slot, elements);
  expect_rank(op, "indices", a.indices, 2);
  expect(op, "indices", a.indices, DType::i32, choices(n, a.indices));
  ANANKE_CHECK(a.experts >= 0, "{}: {} experts", op, a.experts);
  expect(op, "offsets", a.offsets, DType::i32, {a.experts + 1});
  return n;
}

PermuteSizes check(const Permute::Backward& a, DType elements) {
  constexpr const char* op = "permute backward";
  const PermuteSizes n = sizes_of(op, "dx", a.dx, "drows", a.drows, a.row_of_slot, elements);
  if (a.d_row_weights || a.dweights) {
    expect(op, "d_row_weights", a.d_row_weights, {n.slots()});
    check_weights(op, "dweights", a.dweights, n);
  }
  return n;
}

PermuteSizes check(const Permute::CombineForward& a, DType elements) {
  constexpr const char* op = "combine forward";
  const PermuteSizes n = sizes_of(op, "y", a.y, "rows", a.rows, a.row_of_slot, elements);
  check_weights(op, "weights", a.weights, n);
  return n;
}

PermuteSizes check(const Permute::CombineBackward& a, DType elements) {
  constexpr const char* op = "combine backward";
  const PermuteSizes n = sizes_of(op, "dy", a.dy, "d_weighted", a.d_weighted, a.row_of_slot, elements);
  check_weights(op, "weights", a.weights, n);
  expect(op, "row_weights", a.row_weights, {n.slots()});
  return n;
}

namespace {

void check_matrices(const char* op, const char* const names[3], const GroupedMlp::Weights& w,
                    const GroupedMlp::Sizes& n, DType dtype) {
  const auto check = [&](const char* name, const MatrixStack& stack, Shape shape) {
    if (n.groups == 0) return;
    expect(op, name, stack.first, dtype, shape);
    ANANKE_CHECK(n.groups == 1 || stack.stride >= shape.elements(), "{}: {} {} every {} elements", op, name,
                 to_string(shape), stack.stride);
  };
  check(names[0], w.gate, {n.width, n.hidden});
  check(names[1], w.up, {n.width, n.hidden});
  check(names[2], w.down, {n.hidden, n.width});
}

GroupedMlp::Sizes sizes_of(const char* op, const TensorView& x, const TensorView& offsets, const GroupedMlp::Weights& w,
                           std::span<const std::int64_t> known, DType elements) {
  expect_rank(op, "x", x, 2);
  expect_rank(op, "offsets", offsets, 1);
  ANANKE_CHECK(offsets.elements() >= 1, "{}: offsets is empty", op);
  const std::int64_t groups = offsets.elements() - 1;
  if (groups > 0) expect_rank(op, "gate", w.gate.first, 2);
  const GroupedMlp::Sizes n{x.shape[0], x.shape[1], groups > 0 ? w.gate.first.shape[0] : 0, groups};
  expect(op, "x", x, elements, {n.rows, n.hidden});
  expect(op, "offsets", offsets, DType::i32, {n.groups + 1});
  const char* const names[] = {"gate", "up", "down"};
  check_matrices(op, names, w, n, elements);
  ANANKE_CHECK(known.empty() || known.size() == static_cast<std::size_t>(n.groups) + 1,
               "{}: {} known offsets for {} groups", op, known.size(), n.groups);
  for (std::size_t g = 0; g < known.size(); ++g) {
    ANANKE_CHECK((g == 0 ? known[g] == 0 : known[g - 1] <= known[g]) && known[g] <= n.rows,
                 "{}: known offset {} is {}; offsets rise from 0 to at most {} rows", op, g, known[g], n.rows);
  }
  return n;
}

}  // namespace

GroupedMlp::Sizes check(const GroupedMlp::Forward& a, DType elements) {
  constexpr const char* op = "grouped_mlp forward";
  const GroupedMlp::Sizes n = sizes_of(op, a.x, a.offsets, a.weights, a.known_offsets, elements);
  expect_or_empty(op, "y", a.y, elements, {n.rows, n.hidden});
  return n;
}

GroupedMlp::Sizes check(const GroupedMlp::Backward& a, DType elements) {
  constexpr const char* op = "grouped_mlp backward";
  const GroupedMlp::Sizes n = sizes_of(op, a.x, a.offsets, a.weights, a.known_offsets, elements);
  const char* const names[] = {"gradient of gate", "gradient of up", "gradient of down"};
  check_matrices(op, names, a.gradient, n, DType::f32);
  expect(op, "dy", a.dy, elements, {n.rows, n.hidden});
  expect(op, "dx", a.dx, elements, {n.rows, n.hidden});
  if (a.row_weights || a.d_row_weights) {
    expect(op, "row_weights", a.row_weights, {n.rows});
    expect(op, "d_row_weights", a.d_row_weights, {n.rows});
  }
  return n;
}

namespace {

ExchangeTokenSizes sizes_of(const char* op, const char* name, const TensorView& by_token, const TensorView& copies,
                            DType elements) {
  expect_rank(op, name, by_token, 2);
  expect_rank(op, "copies", copies, 2);
  const ExchangeTokenSizes n{by_token.shape[0], by_token.shape[1], copies.shape[1]};
  expect(op, name, by_token, elements, {n.tokens, n.hidden});
  expect(op, "copies", copies, DType::i32, {n.tokens, n.ranks});
  return n;
}

// The wire has rows of `row`, which is one of width `hidden` and of what `op` moves.
void check_wire(const char* op, const TensorView& wire, const WireRow& row, std::int64_t hidden,
                std::initializer_list<WireRow::Extras> may_carry) {
  ANANKE_CHECK(row.values == DType::f32 || row.values == DType::bf16,
               "{}: wire rows hold {}, but f32 or bf16 is needed", op, name_of(row.values));
  ANANKE_CHECK(row.hidden == hidden && row.k >= 0, "{}: wire rows of {} values for tensors of {}", op, row.hidden,
               hidden);
  ANANKE_CHECK(std::find(may_carry.begin(), may_carry.end(), row.extras) != may_carry.end(),
               "{}: wire rows carry what it does not move", op);
  expect_rank(op, "wire", wire, 2);
  expect(op, "wire", wire, DType::u8, {wire.shape[0], row.bytes()});
  ANANKE_CHECK(reinterpret_cast<std::uintptr_t>(wire.data) % 16 == 0, "{}: wire is not aligned to 16 bytes", op);
}

void check_copies(const char* op, const Exchange::Copies& copies, std::int64_t capacity) {
  expect(op, "count of copies", copies.count, DType::i32, {1});
  expect_rank(op, "rows of copies", copies.rows, 2);
  const Shape shape{capacity, copies.rows.shape[1]};
  expect(op, "rows of copies", copies.rows, DType::i32, shape);
  expect(op, "slots of copies", copies.slots, DType::i32, shape);
  expect(op, "weights of copies", copies.weights, shape);
}

// `by_row` is [row capacity, H]; `wire` has a row per copy.
ExchangeCopySizes sizes_of(const char* op, const char* name, const TensorView& by_row, const Exchange::Copies& copies,
                           const TensorView& wire, const WireRow& row, WireRow::Extras extras, DType elements) {
  expect_rank(op, name, by_row, 2);
  expect_rank(op, "rows of copies", copies.rows, 2);
  const ExchangeCopySizes n{copies.rows.shape[0], by_row.shape[1], copies.rows.shape[1], by_row.shape[0]};
  expect(op, name, by_row, elements, {n.rows, n.hidden});
  check_copies(op, copies, n.copies);
  check_wire(op, wire, row, n.hidden, {extras});
  ANANKE_CHECK(row.k == n.k, "{}: wire rows of {} choices for copies of {}", op, row.k, n.k);
  ANANKE_CHECK(wire.shape[0] >= n.copies, "{}: wire of {} rows for {} copies", op, wire.shape[0], n.copies);
  return n;
}

}  // namespace

ExchangePlanSizes check(const Exchange::Plan& a) {
  constexpr const char* op = "exchange plan";
  expect_rank(op, "indices", a.indices, 2);
  expect_rank(op, "counts", a.counts, 2);
  const ExchangePlanSizes n{a.indices.shape[0], a.indices.shape[1], a.counts.shape[0], a.counts.shape[1]};
  expect(op, "indices", a.indices, DType::i32, {n.tokens, n.k});
  expect(op, "copies", a.copies, DType::i32, {n.tokens, n.ranks});
  expect(op, "counts", a.counts, DType::i32, {n.ranks, n.chunks});
  ANANKE_CHECK(n.ranks > 0 && n.chunks > 0 && a.chunk_tokens * n.chunks >= n.tokens,
               "{}: {} chunks of {} tokens for {} tokens and {} ranks", op, n.chunks, a.chunk_tokens, n.tokens,
               n.ranks);
  return n;
}

ExchangeTokenSizes check(const Exchange::Pack& a, DType elements) {
  constexpr const char* op = "exchange pack";
  const ExchangeTokenSizes n = sizes_of(op, "x", a.x, a.copies, elements);
  check_wire(op, a.wire, a.row, n.hidden, {WireRow::Extras::none, WireRow::Extras::routing});
  if (a.row.extras == WireRow::Extras::routing) {
    expect(op, "indices", a.indices, DType::i32, {n.tokens, a.row.k});
    expect(op, "weights", a.weights, {n.tokens, a.row.k});
  }
  return n;
}

ExchangeTokenSizes check(const Exchange::Collect& a, DType elements) {
  constexpr const char* op = "exchange collect";
  const ExchangeTokenSizes n = sizes_of(op, "y", a.y, a.copies, elements);
  check_wire(op, a.wire, a.row, n.hidden, {WireRow::Extras::none, WireRow::Extras::dweights});
  if (a.row.extras == WireRow::Extras::dweights) {
    expect(op, "indices", a.indices, DType::i32, {n.tokens, a.row.k});
    expect(op, "dweights", a.dweights, {n.tokens, a.row.k});
  }
  return n;
}

ExchangeExpandSizes check(const Exchange::Expand& a, DType elements) {
  constexpr const char* op = "exchange expand";
  expect_rank(op, "rows", a.rows, 2);
  expect_rank(op, "offsets", a.offsets, 1);
  expect_rank(op, "arrived", a.arrived, 2);
  expect_rank(op, "rows of copies", a.copies.rows, 2);
  ANANKE_CHECK(a.offsets.elements() >= 1, "{}: offsets is empty", op);
  const ExchangeExpandSizes n{a.copies.rows.shape[0], a.rows.shape[0], a.rows.shape[1], a.copies.rows.shape[1],
                              a.offsets.elements() - 1};
  expect(op, "rows", a.rows, elements, {n.rows, n.hidden});
  expect(op, "offsets", a.offsets, DType::i32, {n.local + 1});
  expect(op, "arrived", a.arrived, DType::i32, {a.arrived.shape[0], a.arrived.shape[1]});
  ANANKE_CHECK(a.chunk >= 0 && a.chunk < a.arrived.shape[1], "{}: chunk {} of {}", op, a.chunk, a.arrived.shape[1]);
  ANANKE_CHECK(n.rows <= std::numeric_limits<std::int32_t>::max(), "{}: {} rows do not fit i32", op, n.rows);
  check_copies(op, a.copies, n.copies);
  check_wire(op, a.wire, a.row, n.hidden, {WireRow::Extras::routing});
  ANANKE_CHECK(a.row.k == n.k, "{}: wire rows of {} choices for copies of {}", op, a.row.k, n.k);
  ANANKE_CHECK(a.wire.shape[0] >= n.copies, "{}: wire of {} rows for {} copies", op, a.wire.shape[0], n.copies);
  return n;
}

ExchangeCopySizes check(const Exchange::Combine& a, DType elements) {
  return sizes_of("exchange combine", "outputs", a.outputs, a.copies, a.wire, a.row, WireRow::Extras::none, elements);
}

ExchangeCopySizes check(const Exchange::CombineBackward& a, DType elements) {
  constexpr const char* op = "exchange combine_backward";
  const ExchangeCopySizes n =
      sizes_of(op, "d_weighted", a.d_weighted, a.copies, a.wire, a.row, WireRow::Extras::none, elements);
  expect(op, "row_weights", a.row_weights, {n.rows});
  return n;
}

ExchangeCopySizes check(const Exchange::ExpandBackward& a, DType elements) {
  constexpr const char* op = "exchange expand_backward";
  const ExchangeCopySizes n =
      sizes_of(op, "d_rows", a.d_rows, a.copies, a.wire, a.row, WireRow::Extras::dweights, elements);
  expect(op, "d_row_weights", a.d_row_weights, {n.rows});
  return n;
}

}  // namespace ananke::arguments
