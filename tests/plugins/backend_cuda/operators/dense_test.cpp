// Products, embedding, residual and norm, odds and ends.
#include <array>
#include <cmath>

#include "plugins/backend_host/operators/bf16.h"
#include "runtime/operators/reference/elementwise.h"
#include "tests/plugins/backend_cuda/operators/bench.h"

namespace ananke::cuda {
namespace {

struct CudaLinear : CudaOperator {};
struct CudaEmbedding : CudaOperator {};
struct CudaAddRmsNorm : CudaOperator {};
struct CudaElementwise : CudaOperator {};

Results linear(Bench& bench, std::int64_t tokens, std::int64_t in, std::int64_t out, bool add_dx) {
  const Tensor x = bench.activation(random_floats(tokens * in, 1), {tokens, in});
  const Tensor weight = bench.activation(random_floats(out * in, 2), {out, in});
  const Tensor dy = bench.activation(random_floats(tokens * out, 3), {tokens, out});
  const Tensor y = bench.blank_activation({tokens, out});
  const Tensor dx =
      add_dx ? bench.activation(random_floats(tokens * in, 4), {tokens, in}) : bench.blank_activation({tokens, in});
  const Tensor dweight = bench.tensor(random_floats(out * in, 5), {out, in});
  bench->linear->forward(bench.stream(), {x, weight, y});
  bench->linear->backward(bench.stream(), {x, weight, dy, dx, add_dx, dweight});
  return {result("y", bench.floats(y), 1e-5, 0.01), result("dx", bench.floats(dx), 1e-5, 0.01),
          result("dweight", bench.floats(dweight), 1e-5, 1e-4)};
}

TEST_F(CudaLinear, MatchesTheHost) {
  for (const auto& [tokens, in, out] : {std::array<std::int64_t, 3>{0, 3, 5},
                                        {3, 0, 5},
                                        {3, 5, 0},
                                        {1, 1, 1},
                                        {7, 13, 5},
                                        {64, 64, 64},
                                        {129, 127, 65},
                                        {128, 256, 512},
                                        {521, 67, 131}}) {
    for (const bool add : {false, true}) {
      compare("linear " + std::to_string(tokens) + " x " + std::to_string(in) + " x " + std::to_string(out),
              [&](Bench& bench) { return linear(bench, tokens, in, out, add); });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaLinear, RefusesShapesThatDoNotFitAndStreamsOfOthers) {
  expect_refused(
      [](Bench& bench) {
        bench->linear->forward(bench.stream(), {bench.tensor(Floats(6), {2, 3}), bench.tensor(Floats(8), {2, 4}),
                                                bench.tensor(Floats(4), {2, 2})});
      },
      {"linear forward", "weight", "[2, 4]", "[2, 3]"});
  expect_refused(
      [](Bench& bench) {
        bench->linear->forward(
            host_bench(false)->stream(),
            {bench.tensor(Floats(6), {2, 3}), bench.tensor(Floats(6), {2, 3}), bench.tensor(Floats(4), {2, 2})});
      },
      {"another backend"});
}

struct EmbeddingCase {
  std::int64_t tokens, vocabulary, hidden;
  int repeat;  // every so many tokens the same one
};

Results embedding(Bench& bench, const EmbeddingCase& n) {
  Ints ids(static_cast<std::size_t>(n.tokens));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = i % static_cast<std::size_t>(n.repeat) == 0
                 ? static_cast<std::int32_t>(n.vocabulary - 1)
                 : static_cast<std::int32_t>((i * i + i / 3) % static_cast<std::size_t>(n.vocabulary));
  }
  const Tensor tokens = bench.tensor(ids, {n.tokens});
  const Tensor table = bench.activation(random_floats(n.vocabulary * n.hidden, 1), {n.vocabulary, n.hidden});
  const Tensor y = bench.blank_activation({n.tokens, n.hidden});
  const Tensor dy = bench.activation(random_floats(n.tokens * n.hidden, 2), {n.tokens, n.hidden});
  const Tensor dtable = bench.tensor(random_floats(n.vocabulary * n.hidden, 3), {n.vocabulary, n.hidden});
  bench->embedding->forward(bench.stream(), {tokens, table, y});
  bench->embedding->backward(bench.stream(), {tokens, dy, dtable});
  return {exact("y", bench.floats(y)), exact("dtable", bench.floats(dtable))};
}

TEST_F(CudaEmbedding, MatchesTheHostBitForBit) {
  for (const EmbeddingCase& n : {EmbeddingCase{0, 5, 3, 2},
                                 {3, 5, 0, 2},
                                 {1, 1, 1, 1},
                                 {7, 3, 5, 2},
                                 {300, 17, 64, 3},
                                 {2500, 901, 67, 2},
                                 {5000, 11, 24, 1},
                                 {700, 600, 1096, 5},
                                 {4099, 5000, 8, 4}}) {
    compare("embedding of " + std::to_string(n.tokens), [&](Bench& bench) { return embedding(bench, n); });
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaEmbedding, SaysWhichTokenIsNone) {
  const Ints ids = {0, 4, 2, 9, 1};
  expect_refused(
      [&](Bench& bench) {
        const Tensor tokens = bench.tensor(ids, {5}), table = bench.tensor(Floats(12), {4, 3});
        const Tensor y = bench.blank(DType::f32, {5, 3});
        bench->embedding->forward(bench.stream(), {tokens, table, y});
        bench.finish();
      },
      {"embedding", "of a table of 4 rows"});
  expect_refused(
      [&](Bench& bench) {
        const Tensor tokens = bench.tensor(ids, {5}), dy = bench.tensor(Floats(15), {5, 3});
        const Tensor dtable = bench.tensor(Floats(27), {9, 3});
        bench->embedding->backward(bench.stream(), {tokens, dy, dtable});
        bench.finish();
      },
      {"embedding", "token 9 at position 3 of a table of 9 rows"});
}

struct NormCase {
  std::int64_t rows, width;
  bool delta, in_place, dh_in;
};

Results add_rms_norm(Bench& bench, const NormCase& n) {
  constexpr double eps = 1e-6;
  const Shape shape{n.rows, n.width};
  const std::int64_t size = n.rows * n.width;
  const Tensor x = bench.activation(random_floats(size, 1), shape);
  const Tensor delta = bench.activation(random_floats(size, 2), shape);
  const Tensor weight = bench.tensor(random_floats(n.width, 3), {n.width});
  const Tensor own = bench.blank_activation(shape), y = bench.blank_activation(shape);
  const Tensor dy = bench.activation(random_floats(size, 4), shape);
  const Tensor dh = n.dh_in ? bench.activation(random_floats(size, 5), shape) : bench.blank_activation(shape);
  const Tensor dweight = bench.tensor(Floats(static_cast<std::size_t>(n.width), 0.5f), {n.width});
  const TensorView h = n.in_place ? x.view : own.view;
  const AddRmsNorm::Sizes sizes{n.rows, n.width};
  const Region saved = bench.scratch(bench->add_rms_norm->saved(sizes));
  const Region workspace = bench.scratch(bench->add_rms_norm->workspace(sizes));
  bench->add_rms_norm->forward(bench.stream(),
                               {x, n.delta ? delta.view : TensorView{}, weight, h, y, eps, saved, workspace});
  bench->add_rms_norm->backward(bench.stream(),
                                {h, weight, dy, n.dh_in ? dh.view : TensorView{}, dh, dweight, eps, saved, workspace});
  return {result("h", bench.floats(h), 0, 0.005), result("y", bench.floats(y), 1e-6, 0.01),
          result("dh", bench.floats(dh), 2e-6, 0.01), result("dweight", bench.floats(dweight), 2e-6, 0.005)};
}

TEST_F(CudaAddRmsNorm, MatchesTheHostInEveryVariant) {
  for (const auto& [rows, width] :
       {std::array<std::int64_t, 2>{0, 7}, {1, 1}, {5, 13}, {131, 67}, {33, 64}, {3, 6144}, {70, 2048}, {2, 20001}}) {
    for (int variant = 0; variant < 8; ++variant) {
      const NormCase n{rows, width, (variant & 1) != 0, (variant & 2) != 0, (variant & 4) != 0};
      compare("add_rms_norm " + std::to_string(rows) + " x " + std::to_string(width) + ", variant " +
                  std::to_string(variant),
              [&](Bench& bench) { return add_rms_norm(bench, n); });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAddRmsNorm, MatchesTheHostWhereBlocksHaveManyRows) {
  for (const auto& [rows, width] : {std::array<std::int64_t, 2>{2601, 72}, {8300, 7}, {1030, 4104}}) {
    compare("add_rms_norm " + std::to_string(rows) + " x " + std::to_string(width), [&](Bench& bench) {
      return add_rms_norm(bench, {rows, width, true, false, true});
    });
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAddRmsNorm, RefusesShapesThatDoNotFitAndMemoryThatIsTooSmall) {
  const auto forward = [](Bench& bench, std::int64_t width, Region saved) {
    const Tensor x = bench.tensor(Floats(6), {2, 3}), weight = bench.tensor(Floats(width), {width});
    const Tensor y = bench.tensor(Floats(6), {2, 3});
    bench->add_rms_norm->forward(bench.stream(), {x, {}, weight, {}, y, 1e-6, saved, {}});
  };
  expect_refused([&](Bench& bench) { forward(bench, 2, bench.scratch(64)); },
                 {"add_rms_norm forward", "weight", "[2]", "[3]"});
  expect_refused([&](Bench& bench) { forward(bench, 3, bench.scratch(4)); },
                 {"add_rms_norm forward", "saved", "4 bytes"});
}

Results add(Bench& bench, std::int64_t n) {
  const Tensor a = bench.activation(random_floats(n, 1), {n}), b = bench.activation(random_floats(n, 2), {n});
  const Tensor y = bench.blank_activation({n});
  bench->elementwise->add(bench.stream(), a, b, y);
  bench->elementwise->add(bench.stream(), a, b, a);
  return {result("y", bench.floats(y), 0, 0.005), result("a", bench.floats(a), 0, 0.005)};
}

Results scalars(Bench& bench, std::int64_t n, float spoiled, double clip_norm) {
  Floats values = random_floats(n, 1);
  if (n > 0) values[static_cast<std::size_t>(n / 2)] += spoiled;
  const Tensor x = bench.tensor(values, {n});
  const Tensor sum = bench.tensor(Doubles{0.25}, {1}), loss = bench.tensor(Doubles{2}, {1});
  const Tensor scale = bench.blank(DType::f32, {1}), finite = bench.blank(DType::i32, {1});
  const Tensor one_by = bench.blank(DType::f32, {1}), hash = bench.blank(DType::i64, {2});
  bench->elementwise->square_sum(bench.stream(), x, sum);
  bench->elementwise->clip(bench.stream(), {sum, loss, clip_norm, scale, finite});
  bench->elementwise->reciprocal(bench.stream(), sum, one_by);
  bench->elementwise->hash(bench.stream(), x, hash);
  const std::vector<std::int64_t> hashes = bench.values<std::int64_t>(hash);
  Ints parts;  // of the hash, in numbers that a double holds
  for (const std::int64_t value : hashes) {
    parts.push_back(static_cast<std::int32_t>(value));
    parts.push_back(static_cast<std::int32_t>(value >> 32));
  }
  return {result("sum", bench.values<double>(sum), 1e-12), result("scale", bench.floats(scale), 1e-6),
          exact("finite", bench.values<std::int32_t>(finite)), result("reciprocal", bench.floats(one_by), 1e-6),
          exact("hash", parts)};
}

// f32 sums that are added to a gradient as its owner stores it, in place; and what is asked of it then.
Results stored_gradient(Bench& bench, std::int64_t n) {
  const Tensor owned = bench.activation(random_floats(n, 1), {n}), sums = bench.tensor(random_floats(n, 2), {n});
  const Tensor sum = bench.tensor(Doubles{0.25}, {1}), hash = bench.blank(DType::i64, {2});
  bench->elementwise->add(bench.stream(), owned, sums, owned);
  const Floats added = bench.stored(owned);
  const Tensor again = bench.activation(added, {n});  // the host has not rounded yet
  bench->elementwise->square_sum(bench.stream(), again, sum);
  bench->elementwise->hash(bench.stream(), again, hash);
  auto hashes = bench.values<std::int64_t>(hash);
  if (bench.rounded() && bench.elements() == DType::f32) {  // the host's are of f32 bits
    std::uint64_t of_halves = 0;
    for (std::size_t i = 0; i < added.size(); ++i) {
      of_halves += reference::splitmix64((static_cast<std::uint64_t>(i) << 32) + host::to_bf16(added[i]));
    }
    hashes = {static_cast<std::int64_t>(of_halves), static_cast<std::int64_t>(~of_halves)};
  }
  Ints parts;  // in numbers that a double holds
  for (const std::int64_t value : hashes) {
    parts.push_back(static_cast<std::int32_t>(value));
    parts.push_back(static_cast<std::int32_t>(value >> 32));
  }
  return {exact("owned", added), result("square sum", bench.values<double>(sum), 1e-12, 1e-12), exact("hash", parts)};
}

TEST_F(CudaElementwise, AddsToGradientsInBf16AndHashesThem) {
  for (const std::int64_t n : {0, 1, 3, 255, 4096, 4099, 100003, 5000011}) {
    compare("gradient of " + std::to_string(n), [&](Bench& bench) { return stored_gradient(bench, n); });
    if (HasFatalFailure()) return;
  }
}

// Terms of which every order but one gives another sum.
Results add_in_order(Bench& bench, std::int64_t n) {
  Doubles terms;
  for (std::int64_t i = 0; i < n; ++i) terms.push_back((i % 2 ? -1 : 1) * 1e16 / static_cast<double>(i + 1) + 0.3);
  const Tensor x = bench.tensor(terms, {n}), sum = bench.tensor(Doubles{0.25}, {1});
  bench->elementwise->add_in_order(bench.stream(), x, sum);
  return {result("sum", bench.values<double>(sum), 0)};
}

TEST_F(CudaElementwise, AddsInOrderToTheSameBits) {
  for (const std::int64_t n : {0, 1, 2, 301}) {
    compare("terms: " + std::to_string(n), [&](Bench& bench) { return add_in_order(bench, n); }, {DType::f32});
  }
}

TEST_F(CudaElementwise, MatchesTheHost) {
  for (const std::int64_t n : {0, 1, 3, 255, 4096, 4099, 100003}) {
    compare("add of " + std::to_string(n), [&](Bench& bench) { return add(bench, n); });
    for (const float spoiled : {0.0f, INFINITY, NAN}) {
      for (const double clip : {0.0, 1.0}) {
        compare("scalars of " + std::to_string(n), [&](Bench& bench) { return scalars(bench, n, spoiled, clip); },
                {DType::f32});
      }
    }
    if (HasFatalFailure()) return;
  }
  compare("many", [&](Bench& bench) { return scalars(bench, 5000011, 0, 1); }, {DType::f32});
}

}  // namespace
}  // namespace ananke::cuda
