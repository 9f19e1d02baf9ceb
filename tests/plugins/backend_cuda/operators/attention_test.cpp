#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "tests/plugins/backend_cuda/operators/bench.h"

namespace ananke::cuda {
namespace {

struct CudaAttention : CudaOperator {};

struct Case {
  std::int64_t query_heads, key_heads, head_dim;
  std::vector<std::int64_t> lengths;  // of the segments

  std::int64_t tokens() const { return offsets().back(); }
  std::int64_t longest() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }
  Ints offsets() const {
    Ints out = {0};
    for (const std::int64_t length : lengths) out.push_back(out.back() + static_cast<std::int32_t>(length));
    return out;
  }
  Ints positions() const {
    Ints out;
    for (const std::int64_t length : lengths) {
      for (std::int64_t t = 0; t < length; ++t) out.push_back(static_cast<std::int32_t>(t));
    }
    return out;
  }
  Attention::Sizes sizes() const {
    return {tokens(), query_heads, key_heads, head_dim, static_cast<std::int64_t>(lengths.size()), longest()};
  }
};

// cosine or sine of every cached position.
Floats cache(const Case& c, double (*of)(double)) {
  Floats out;
  for (std::int64_t p = 0; p < c.longest(); ++p) {
    for (std::int64_t i = 0; i < c.head_dim / 2; ++i) {
      const double power = -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim);
      out.push_back(static_cast<float>(of(static_cast<double>(p) * std::pow(1e4, power))));
    }
  }
  return out;
}

Results attention(Bench& bench, const Case& c, const Ints& offset_values, const Ints& position_values) {
  const Attention::Sizes n = c.sizes();
  const Shape queries{n.tokens, n.query_heads, n.head_dim}, keys{n.tokens, n.key_heads, n.head_dim};
  const Shape cached{n.longest, n.head_dim / 2}, dim{n.head_dim};
  const Tensor q = bench.activation(random_floats(queries.elements(), 1), queries);
  const Tensor k = bench.activation(random_floats(keys.elements(), 2), keys);
  const Tensor v = bench.activation(random_floats(keys.elements(), 3), keys);
  const Tensor q_norm = bench.tensor(random_floats(n.head_dim, 4, 2), dim);
  const Tensor k_norm = bench.tensor(random_floats(n.head_dim, 5, 2), dim);
  const Tensor d_o = bench.activation(random_floats(queries.elements(), 6), queries);
  const Tensor cosine = bench.tensor(cache(c, std::cos), cached), sine = bench.tensor(cache(c, std::sin), cached);
  const Tensor positions = bench.tensor(position_values, {n.tokens});
  const Tensor offsets = bench.tensor(offset_values, {n.segments + 1});
  const Tensor o = bench.blank_activation(queries), dq = bench.blank_activation(queries);
  const Tensor dk = bench.blank_activation(keys), dv = bench.blank_activation(keys);
  const Tensor dq_norm = bench.tensor(Floats(static_cast<std::size_t>(n.head_dim), 0.5f), dim);
  const Tensor dk_norm = bench.tensor(Floats(static_cast<std::size_t>(n.head_dim), 0.5f), dim);
  const Region saved = bench.scratch(bench->attention->saved(n));
  const Region workspace = bench.scratch(bench->attention->workspace(n));
  const Region again = bench.scratch(bench->attention->workspace(n));
  const Attention::Inputs in{q, k, v, q_norm, k_norm, cosine, sine, positions, {offsets, n.segments, n.longest}, 1e-6};
  bench->attention->forward(bench.stream(), {in, o, saved, workspace});
  bench->attention->backward(bench.stream(), {in, o, d_o, dq, dk, dv, dq_norm, dk_norm, saved, again});
  return {result("o", bench.floats(o), 5e-6, 0.02),
          result("dq", bench.floats(dq), 1e-5, 0.03),
          result("dk", bench.floats(dk), 1e-5, 0.03),
          result("dv", bench.floats(dv), 1e-5, 0.02),
          result("dq_norm", bench.floats(dq_norm), 2e-5, 0.03),
          result("dk_norm", bench.floats(dk_norm), 2e-5, 0.03)};
}

TEST_F(CudaAttention, MatchesTheHostOnEveryCutIntoDocuments) {
  const Case cases[] = {{2, 1, 8, {}},
                        {1, 1, 2, {1}},
                        {2, 2, 6, {3, 1, 5}},
                        {4, 2, 10, {1, 1, 1, 2, 7}},
                        {8, 2, 64, {63, 64, 65, 1, 127, 128, 129}},
                        {4, 1, 128, {130, 1, 64, 200}},
                        {3, 3, 96, {97}},
                        {2, 1, 256, {31, 32, 33, 1, 100}},
                        {2, 1, 130, {70, 3}},
                        {6, 2, 128, {513}}};
  for (const Case& c : cases) {
    compare("attention of " + std::to_string(c.tokens()) + " tokens, heads of " + std::to_string(c.head_dim),
            [&](Bench& bench) { return attention(bench, c, c.offsets(), c.positions()); });
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttention, TakesMoreSegmentsThanThreads) {
  const Case c{1, 1, 4, std::vector<std::int64_t>(2500, 2)};
  compare("attention of many", [&](Bench& bench) { return attention(bench, c, c.offsets(), c.positions()); });
}

TEST_F(CudaAttention, SaysWhatIsWrongWithOffsetsAndPositions) {
  const Case c{2, 1, 8, {3, 4}};
  expect_refused(
      [&](Bench& bench) {
        attention(bench, c, {0, 3, 8}, c.positions());
      },
      {"attention", "segments cover [0, 8) of 7 tokens"});
  expect_refused(
      [&](Bench& bench) {
        attention(bench, c, {0, 0, 7}, c.positions());
      },
      {"attention", "but segments have 1 to 4 tokens"});
  expect_refused(
      [&](Bench& bench) {
        attention(bench, c, c.offsets(), {0, 1, 2, 0, 1, 4, 3});
      },
      {"attention", "position 4 of token 5, but 4 are cached"});
  const Case wide{1, 1, 258, {3}};
  expect_refused([&](Bench& bench) { attention(bench, wide, wide.offsets(), wide.positions()); },
                 {"attention", "258", "at most 256"});
}

// By cuDNN, where the library is.
struct CudnnAttentionTest : CudaOperator {
  void SetUp() override {
    CudaOperator::SetUp();
    if (IsSkipped()) return;
    try {
      bench = cuda_bench(DType::bf16, AttentionChoice::cudnn);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      GTEST_SKIP() << error.what();
    }
  }
  std::unique_ptr<Bench> bench;
};

TEST_F(CudnnAttentionTest, MatchesTheHostOnEveryCutIntoDocuments) {
  const Case cases[] = {{2, 2, 64, {1}},
                        {8, 2, 64, {63, 64, 65, 1, 127, 128, 129}},
                        {4, 1, 128, {130, 1, 64, 200}},
                        {16, 4, 128, {1, 1, 1, 2, 7, 500}},
                        {3, 3, 128, {97}},
                        {6, 2, 128, {513}}};
  for (const Case& c : cases) {
    compare_on(
        *bench,
        "cuDNN's attention of " + std::to_string(c.tokens()) + " tokens, heads of " + std::to_string(c.head_dim),
        [&](Bench& b) { return attention(b, c, c.offsets(), c.positions()); },
        1);  // the forward pass alone
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudnnAttentionTest, TakesFewerTokensAndDocumentsThanPlanned) {
  const Attention::Sizes planned{1000, 8, 2, 128, 16, 300};
  const std::size_t most = (*bench)->attention->workspace(planned);
  const Case cases[] = {{8, 2, 128, {300, 1, 299}}, {8, 2, 128, {17}}, {8, 2, 128, std::vector<std::int64_t>(16, 62)}};
  for (const Case& c : cases) {
    EXPECT_LE((*bench)->attention->workspace(c.sizes()), most);
    compare_on(
        *bench, "cuDNN's attention of fewer than planned",
        [&](Bench& b) { return attention(b, c, c.offsets(), c.positions()); }, 1);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudnnAttentionTest, LeavesMoreDocumentsThanItsPlansToTheOwnKernels) {
  const Case c{2, 1, 64, std::vector<std::int64_t>(CudnnAttention::most_documents + 1, 2)};
  compare_on(
      *bench, "attention of more documents", [&](Bench& b) { return attention(b, c, c.offsets(), c.positions()); },
      ~std::size_t{0});
}

// The deterministic backward pass: all results have the same bits both times.
TEST_F(CudnnAttentionTest, GivesTheSameBitsWhereThatIsAskedFor) {
  const auto deterministic = cuda_bench(DType::bf16, AttentionChoice::cudnn, true);
  const Case cases[] = {{16, 4, 128, {1024}}, {8, 2, 128, {130, 1, 64, 200, 700}}};
  for (const Case& c : cases) {
    compare_on(
        *deterministic, "cuDNN's deterministic attention of " + std::to_string(c.tokens()) + " tokens",
        [&](Bench& b) { return attention(b, c, c.offsets(), c.positions()); }, ~std::size_t{0});
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudnnAttentionTest, SaysWhatIsWrongWithOffsets) {
  const Case c{2, 1, 64, {3, 4}};
  try {
    attention(*bench, c, {0, 3, 8}, c.positions());
    bench->finish();
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("segments cover [0, 8) of 7 tokens"), std::string::npos) << error.what();
  }
}

TEST_F(CudnnAttentionTest, RefusesHeadsThatItHasNoPlanFor) {
  try {
    (*bench)->attention->workspace({128, 2, 1, 6, 1, 128});
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_NE(std::string(error.what()).find("cuDNN cannot plan"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ananke::cuda
