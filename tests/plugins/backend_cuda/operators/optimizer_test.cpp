// AdamW, momentum, and what travels.
#include <array>
#include <cmath>
#include <limits>

#include "tests/plugins/backend_cuda/operators/bench.h"

namespace ananke::cuda {
namespace {

struct CudaAdamW : CudaOperator {};
struct CudaMomentum : CudaOperator {};
struct CudaWire : CudaOperator {};

constexpr std::int64_t counts[] = {0, 1, 3, 1024, 1027, 50021};

Results adamw(Bench& bench, std::int64_t n, std::int32_t go) {
  const Tensor weight = bench.tensor(random_floats(n, 1), {n}), gradient = bench.tensor(random_floats(n, 2), {n});
  const Tensor m = bench.tensor(random_floats(n, 3), {n});
  Floats squares = random_floats(n, 4);
  for (float& value : squares) value = std::abs(value);
  const Tensor v = bench.tensor(squares, {n});
  const Tensor scale = bench.tensor(Floats{0.7f}, {1}), finite = bench.tensor(Ints{go}, {1});
  for (const std::uint64_t step : {1, 2, 1000}) {
    bench->adamw->update(bench.stream(), {weight, gradient, m, v, 3e-4, 0.9, 0.95, 1e-8, 0.1, step, scale, finite});
  }
  return {exact("weight", bench.floats(weight)), exact("exp_avg", bench.floats(m)),
          exact("exp_avg_sq", bench.floats(v))};
}

TEST_F(CudaAdamW, MatchesTheHostBitForBit) {
  for (const std::int64_t n : counts) {
    for (const std::int32_t go : {0, 1}) {
      compare("adamw of " + std::to_string(n), [&](Bench& bench) { return adamw(bench, n, go); }, {DType::f32});
    }
  }
}

// Weights that are stored in bf16: one update in f32 of what is stored, each result rounded once.
Results stored_adamw(Bench& bench, std::int64_t n, std::int32_t go) {
  const Tensor weight = bench.activation(random_floats(n, 1), {n});
  const Tensor gradient = bench.activation(random_floats(n, 2), {n}), m = bench.activation(random_floats(n, 3), {n});
  Floats squares = random_floats(n, 4);
  for (float& value : squares) value = std::abs(value);
  const Tensor v = bench.activation(squares, {n});
  const Tensor scale = bench.tensor(Floats{0.7f}, {1}), finite = bench.tensor(Ints{go}, {1});
  bench->adamw->update(bench.stream(), {weight, gradient, m, v, 3e-2, 0.9, 0.95, 1e-8, 0.1, 7, scale, finite});
  return {exact("weight", bench.stored(weight)), exact("exp_avg", bench.stored(m)),
          exact("exp_avg_sq", bench.stored(v)), exact("gradient", bench.stored(gradient))};
}

TEST_F(CudaAdamW, OfWeightsInBf16IsThatInF32RoundedOnce) {
  for (const std::int64_t n : counts) {
    for (const std::int32_t go : {0, 1}) {
      compare("adamw of " + std::to_string(n), [&](Bench& bench) { return stored_adamw(bench, n, go); });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAdamW, RefusesWhatIsNotOfOneType) {
  expect_refused(
      [](Bench& bench) {
        const Tensor wide = bench.tensor(Floats(8), {8}), narrow = bench.blank(DType::bf16, {8});
        const Tensor one = bench.tensor(Floats{1}, {1}), go = bench.tensor(Ints{1}, {1});
        bench->adamw->update(bench.stream(), {narrow, narrow, wide, narrow, 1, 0.9, 0.9, 1, 0, 1, one, go});
      },
      {"adamw", "exp_avg", "bf16"});
}

Results momentum(Bench& bench, std::int64_t n, std::int32_t go, double mu, bool nesterov) {
  const Tensor weight = bench.tensor(random_floats(n, 1), {n}), gradient = bench.tensor(random_floats(n, 2), {n});
  const Tensor m = bench.tensor(random_floats(n, 3), {n}), out = bench.tensor(random_floats(n, 4), {n});
  const Tensor scale = bench.tensor(Floats{0.7f}, {1}), finite = bench.tensor(Ints{go}, {1});
  bench->momentum->accumulate(bench.stream(), {gradient, m, out, mu, nesterov, scale, finite});
  bench->momentum->apply(bench.stream(), {weight, out, 0.99, 0.02, finite});
  return {exact("momentum", bench.floats(m)), exact("out", bench.floats(out)), exact("weight", bench.floats(weight))};
}

TEST_F(CudaMomentum, MatchesTheHostBitForBit) {
  for (const std::int64_t n : counts) {
    for (const std::int32_t go : {0, 1}) {
      for (const double mu : {0.95, 0.3}) {
        compare("momentum of " + std::to_string(n), [&](Bench& bench) { return momentum(bench, n, go, mu, mu > 0.5); },
                {DType::f32});
      }
    }
  }
}

Floats spoiled(std::int64_t n, unsigned seed, float scale) {
  Floats values = random_floats(n, seed, scale);
  const float odd[] = {0.0f,  -0.0f,    INFINITY, -INFINITY, NAN,    std::numeric_limits<float>::denorm_min(),
                       1e38f, 3.39e38f, 448.0f,   449.0f,    1e-30f, std::numeric_limits<float>::max()};
  for (std::size_t i = 0; i < std::size(odd) && i * 7 < values.size(); ++i) values[i * 7] = odd[i];
  return values;
}

Results halves(Bench& bench, std::int64_t ranks, std::int64_t columns, std::int64_t first, std::int64_t wanted) {
  const Tensor x = bench.tensor(spoiled(ranks * columns, 1, 3), {ranks, columns});
  const Tensor sent = bench.blank(DType::bf16, {ranks, wanted}), back = bench.blank(DType::f32, {ranks, wanted});
  const Tensor sum = bench.blank(DType::f32, {wanted}), added = bench.tensor(random_floats(wanted, 2), {wanted});
  bench->wire->to_bf16(bench.stream(), {x, first, sent});
  bench->wire->from_bf16(bench.stream(), sent, back);
  bench->wire->landing_sum(bench.stream(), {sent, sum, false});
  bench->wire->landing_sum(bench.stream(), {sent, added, true});
  return {exact("sent", bench.floats(sent)), exact("back", bench.floats(back)), exact("sum", bench.floats(sum)),
          exact("added", bench.floats(added))};
}

TEST_F(CudaWire, TravelsInBf16AsOnTheHost) {
  for (const auto& [ranks, columns, first, wanted] : {std::array<std::int64_t, 4>{0, 5, 0, 5},
                                                      {3, 5, 2, 0},
                                                      {1, 1, 0, 1},
                                                      {4, 64, 16, 48},
                                                      {3, 67, 5, 61},
                                                      {8, 4096, 0, 4096},
                                                      {5, 1031, 1, 1029},
                                                      {384, 16, 4, 8}}) {
    compare("bf16 of " + std::to_string(ranks) + " x " + std::to_string(columns),
            [&](Bench& bench) { return halves(bench, ranks, columns, first, wanted); }, {DType::f32});
    if (HasFatalFailure()) return;
  }
}

// Pieces of matrices: whole ones, parts that begin and end inside a row, an empty one.
Results blocks(Bench& bench, const std::vector<std::array<std::int64_t, 3>>& shapes, float scale) {
  std::vector<std::int64_t> table;
  std::int64_t values = 0, bytes = 1;  // codes need no alignment
  for (const auto& [columns, begin, count] : shapes) {
    Wire::BlockPiece piece{columns, begin, count, values, bytes, 0};
    piece.scales = bytes + count;
    table.insert(table.end(), {piece.columns, piece.begin, piece.count, piece.values, piece.codes, piece.scales});
    values += count;
    bytes = piece.scales + Wire::scales_of(piece) + 1;
  }
  const Tensor pieces = bench.tensor(table, {static_cast<std::int64_t>(shapes.size()), Wire::fields});
  const Tensor x = bench.tensor(spoiled(values, 1, scale), {values}), back = bench.blank(DType::f32, {values});
  const Tensor codes = bench.blank(DType::u8, {bytes});
  bench->wire->quantise(bench.stream(), pieces, x, codes);
  bench->wire->dequantise(bench.stream(), pieces, codes, back);
  const Tensor narrow = bench.blank(DType::bf16, {values});
  bench->wire->dequantise(bench.stream(), pieces, codes, narrow);
  return {exact("bytes", bench.values<std::uint8_t>(codes)), exact("back", bench.floats(back)),
          exact("back in bf16", bench.floats(narrow))};
}

TEST_F(CudaWire, TravelsInFp8AsOnTheHost) {
  for (const float scale : {1.0f, 1e-20f, 3e4f}) {
    compare("fp8",
            [&](Bench& bench) {
              return blocks(bench,
                            {{64, 0, 64 * 70},
                             {300, 150, 300 * 200},
                             {1, 3, 500},
                             {129, 0, 0},
                             {4096, 4000, 9001},
                             {128, 128 * 128, 128 * 128}},
                            scale);
            },
            {DType::f32});
    compare("no pieces", [&](Bench& bench) { return blocks(bench, {}, scale); }, {DType::f32});
  }
}

TEST_F(CudaWire, RefusesPiecesThatDoNotFit) {
  expect_refused(
      [](Bench& bench) {
        const std::vector<std::int64_t> table = {8, 0, 40, 30, 0, 40};
        const Tensor pieces = bench.tensor(table, {1, 6}), values = bench.tensor(Floats(64), {64});
        const Tensor bytes = bench.tensor(Bytes(64), {64});
        bench->wire->quantise(bench.stream(), pieces, values, bytes);
        bench.finish();
      },
      {"piece 0", "40 elements", "64 values"});
}

}  // namespace
}  // namespace ananke::cuda
