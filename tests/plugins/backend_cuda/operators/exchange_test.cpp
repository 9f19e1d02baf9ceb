// A whole exchange, there and back: every rank's part is made by the operators of one bench.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/plugins/backend_cuda/operators/bench.h"

namespace ananke::cuda {
namespace {

struct CudaExchange : CudaOperator {};

struct Case {
  std::int64_t tokens, hidden, experts, k, ranks;
  DType wire;
  int skew = 0;  // > 0: the first choice is always expert `skew - 1`
};

Ints choose(const Case& n) {
  std::mt19937 engine(5);
  Ints all(static_cast<std::size_t>(n.experts)), indices;
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    std::shuffle(all.begin(), all.end(), engine);
    if (n.skew > 0) std::iter_swap(all.begin(), std::find(all.begin(), all.end(), n.skew - 1));
    indices.insert(indices.end(), all.begin(), all.begin() + n.k);
  }
  return indices;
}

// Rows in use of a wire as numbers: its values, and behind them the routing or the gradients of weights, as bits.
Results wire_results(const std::string& name, Bench& bench, const TensorView& wire, const WireRow& row,
                     std::int64_t rows, double tolerance, double tolerance_bf16) {
  const Bytes bytes = bench.values<std::uint8_t>(wire);
  Floats values;
  Floats weights;
  Ints indices;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::uint8_t* at = bytes.data() + i * row.bytes();
    for (std::int64_t h = 0; h < row.hidden; ++h) {
      std::uint32_t bits = 0;
      if (row.values == DType::f32) {
        std::memcpy(&bits, at + h * 4, 4);
      } else {
        std::memcpy(reinterpret_cast<std::uint8_t*>(&bits) + 2, at + h * 2, 2);
      }
      float value = 0;
      std::memcpy(&value, &bits, 4);
      values.push_back(value);
    }
    for (std::int64_t j = 0; row.extras != WireRow::Extras::none && j < row.k; ++j) {
      float weight = 0;
      std::memcpy(&weight, at + row.extras_begin() + j * 4, 4);
      weights.push_back(weight);
      if (row.extras != WireRow::Extras::routing) continue;
      std::int32_t index = 0;
      std::memcpy(&index, at + row.indices_begin() + j * 4, 4);
      indices.push_back(index);
    }
  }
  const bool untouched =
      std::all_of(bytes.begin() + rows * row.bytes(), bytes.end(), [](int byte) { return byte == 0xff; });
  EXPECT_TRUE(untouched) << name << ": rows out of use were written";
  return {result(name, values, tolerance, tolerance_bf16), result(name + " weights", weights, 1e-6, 0.01),
          exact(name + " indices", indices)};
}

void append(Results& all, Results more) { std::move(more.begin(), more.end(), std::back_inserter(all)); }

// One rank's tokens go to `rank`, whose experts are [first, last); all that it gives back.
Results exchange(Bench& bench, const Case& n, std::int64_t rank) {
  const Shape choices{n.tokens, n.k}, by_token{n.tokens, n.hidden}, by_copy{n.tokens, n.ranks};
  const double half = n.wire == DType::bf16 ? 0.02 : 1e-5;
  const Ints chosen = choose(n);
  const Tensor x = bench.activation(random_floats(n.tokens * n.hidden, 1), by_token);
  const Tensor weights = bench.tensor(random_floats(n.tokens * n.k, 2), choices),
               indices = bench.tensor(chosen, choices);
  const Tensor copies = bench.blank(DType::i32, by_copy), counts = bench.blank(DType::i32, {n.ranks, 1});
  bench->exchange->plan(bench.stream(), {indices, n.experts, n.tokens, copies, counts});
  const Ints numbers = bench.values<std::int32_t>(counts);
  const std::int64_t sent = std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
  const WireRow token{n.wire, WireRow::Extras::routing, n.hidden, n.k},
      plain{n.wire, WireRow::Extras::none, n.hidden, n.k};
  const WireRow gradient{n.wire, WireRow::Extras::dweights, n.hidden, n.k};
  const Tensor wire = bench.blank(DType::u8, {sent + 1, token.bytes()});
  bench->exchange->pack(bench.stream(), {x, copies, weights, indices, token, wire});
  Results all = {exact("copies", bench.values<std::int32_t>(copies)), exact("counts", numbers)};
  append(all, wire_results("packed", bench, wire, token, sent, 0, 0.01));

  // All copies stand for those that arrive at `rank`, which takes those of its experts.
  std::int64_t first = 0;
  while (first < n.experts && first * n.ranks / n.experts < rank) ++first;
  std::int64_t last = first;
  while (last < n.experts && last * n.ranks / n.experts == rank) ++last;
  const std::int64_t capacity = sent + 3, row_capacity = sent * n.k + 2;
  const Tensor arriving = bench.blank(DType::u8, {capacity, token.bytes()});
  const Tensor arrived =
      bench.tensor(Ints{0, static_cast<std::int32_t>(sent / 2), 0, static_cast<std::int32_t>(sent - sent / 2)}, {2, 2});
  bench->exchange->pack(bench.stream(), {x, copies, weights, indices, token, arriving});
  const Tensor rows = bench.blank_activation({row_capacity, n.hidden}),
               offsets = bench.blank(DType::i32, {last - first + 1});
  const Tensor count = bench.blank(DType::i32, {1}), entry_rows = bench.blank(DType::i32, {capacity, n.k});
  const Tensor entry_slots = bench.blank(DType::i32, {capacity, n.k}),
               entry_weights = bench.blank(DType::f32, {capacity, n.k});
  const Exchange::Copies table{count, entry_rows, entry_slots, entry_weights};
  const Region workspace = bench.scratch(bench->exchange->workspace(last - first));
  bench->exchange->expand(bench.stream(), {arriving, token, arrived, 1, first, rows, offsets, table, workspace});
  const Ints ends = bench.values<std::int32_t>(offsets);
  const std::int64_t used = ends.back();
  const auto head = [](auto values, std::int64_t size) {
    values.resize(static_cast<std::size_t>(size));
    return values;
  };
  append(all, {exact("offsets", ends), exact("count", bench.values<std::int32_t>(count)),
               exact("entry rows", head(bench.values<std::int32_t>(entry_rows), sent * n.k)),
               exact("entry slots", head(bench.values<std::int32_t>(entry_slots), sent * n.k)),
               exact("entry weights", head(bench.floats(entry_weights), sent * n.k)),
               result("rows", head(bench.floats(rows), used * n.hidden), half == 0.02 ? 0 : 0, 0.01)});

  const Tensor outputs = bench.activation(random_floats(row_capacity * n.hidden, 3), {row_capacity, n.hidden});
  const Tensor back = bench.blank(DType::u8, {capacity, plain.bytes()});
  bench->exchange->combine(bench.stream(), {outputs, table, plain, back});
  append(all, wire_results("combined", bench, back, plain, sent, half, 0.02));

  const Tensor d_weighted = bench.blank_activation({row_capacity, n.hidden}),
               row_weights = bench.blank(DType::f32, {row_capacity});
  bench->exchange->combine_backward(bench.stream(), {back, plain, table, d_weighted, row_weights});
  const Tensor returning = bench.blank(DType::u8, {capacity, gradient.bytes()});
  bench->exchange->expand_backward(bench.stream(), {d_weighted, row_weights, table, gradient, returning});
  append(all, {result("d_weighted", head(bench.floats(d_weighted), used * n.hidden), half, 0.03),
               exact("row_weights", head(bench.floats(row_weights), used))});

  const Tensor y = bench.blank_activation(by_token), token_dweights = bench.blank(DType::f32, choices);
  bench->exchange->collect(bench.stream(), {returning, gradient, copies, y, indices, n.experts, token_dweights});
  append(all, {result("y", bench.floats(y), half, 0.04),
               result("token dweights", bench.floats(token_dweights), half, 0.04)});
  return all;
}

TEST_F(CudaExchange, MatchesTheHost) {
  for (const DType wire : {DType::f32, DType::bf16}) {
    for (Case n : {Case{0, 3, 4, 2, 2, wire},
                   {1, 1, 1, 1, 1, wire},
                   {5, 3, 4, 2, 2, wire},
                   {7, 5, 3, 2, 4, wire},
                   {31, 17, 7, 3, 3, wire, 1},
                   {64, 8, 16, 8, 4, wire},
                   {13, 4, 2, 2, 8, wire},
                   {97, 33, 11, 5, 5, wire},
                   {40, 64, 5, 1, 3, wire, 2},
                   {2001, 12, 64, 6, 2, wire},
                   {1100, 8, 40, 32, 4, wire}}) {
      for (std::int64_t rank = 0; rank < n.ranks; rank += 2) {
        compare("exchange of " + std::to_string(n.tokens) + " tokens with rank " + std::to_string(rank) + " of " +
                    std::to_string(n.ranks),
                [&](Bench& bench) { return exchange(bench, n, rank); });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaExchange, PlansChunksAsTheHostDoes) {
  const Case n{301, 0, 12, 4, 3, DType::f32};
  for (const std::int64_t chunks : {1, 2, 3, 7}) {
    const std::int64_t each = (n.tokens + chunks - 1) / chunks + 1;
    compare("plan",
            [&](Bench& bench) {
              const Tensor indices = bench.tensor(choose(n), {n.tokens, n.k});
              const Tensor copies = bench.blank(DType::i32, {n.tokens, n.ranks}),
                           counts = bench.blank(DType::i32, {n.ranks, chunks});
              bench->exchange->plan(bench.stream(), {indices, n.experts, each, copies, counts});
              return Results{exact("copies", bench.values<std::int32_t>(copies)),
                             exact("counts", bench.values<std::int32_t>(counts))};
            },
            {DType::f32});
  }
}

TEST_F(CudaExchange, SaysWhatIsWrong) {
  const auto plan = [](Bench& bench, const Ints& chosen) {
    const Tensor indices = bench.tensor(chosen, {2, 2}), copies = bench.blank(DType::i32, {2, 2});
    const Tensor counts = bench.blank(DType::i32, {2, 1});
    bench->exchange->plan(bench.stream(), {indices, 4, 2, copies, counts});
    bench.finish();
  };
  expect_refused([&](Bench& bench) { plan(bench, {0, 1, 2, 4}); }, {"exchange plan", "expert 4 of 4", "token 1"});
  expect_refused([&](Bench& bench) { plan(bench, {0, 1, 3, 3}); }, {"exchange plan", "token 1 chooses expert 3 twice"});
  expect_refused(
      [](Bench& bench) {
        const WireRow row{DType::f32, WireRow::Extras::none, 4, 1};
        const Tensor outputs = bench.tensor(Floats(8), {2, 4}), wire = bench.blank(DType::u8, {3, row.bytes()});
        const Tensor count = bench.tensor(Ints{4}, {1}), entries = bench.tensor(Ints{0, -1, -1}, {3, 1});
        const Tensor weights = bench.tensor(Floats(3), {3, 1});
        bench->exchange->combine(bench.stream(), {outputs, {count, entries, entries, weights}, row, wire});
        bench.finish();
      },
      {"exchange", "4 copies in buffers for 3"});
}

}  // namespace
}  // namespace ananke::cuda
