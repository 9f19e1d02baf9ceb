// Embedding, elementwise and AdamW.
#include "runtime/operators/reference/adamw.h"
#include "runtime/operators/reference/elementwise.h"
#include "runtime/operators/reference/embedding.h"
#include "tests/plugins/backend_host/operators/fixture.h"

namespace ananke::host {
namespace {

std::vector<Floats> run_embedding(Host& host, std::int64_t tokens, std::int64_t vocabulary, std::int64_t hidden,
                                  const Ints& ids) {
  const Floats table = random_floats(vocabulary * hidden, 1), dy = random_floats(tokens * hidden, 2);
  Floats y = nans(tokens * hidden), dtable(table.size(), 0.25f);
  host->embedding->forward(host.stream,
                           {view(ids, {tokens}), view(table, {vocabulary, hidden}), view(y, {tokens, hidden})});
  host->embedding->backward(host.stream,
                            {view(ids, {tokens}), view(dy, {tokens, hidden}), view(dtable, {vocabulary, hidden})});
  host.finish();
  return {y, dtable};
}

Ints some_ids(std::int64_t tokens, std::int64_t vocabulary) {
  Ints ids;
  for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>(t * t % vocabulary));
  return ids;
}

TEST(HostEmbedding, RefusesWrongShapesAndTokensOutsideTheTable) {
  Host host;
  const Floats table(8), y(6);
  const Ints two = {1, 2};
  expect_refused(
      [&] {
        host->embedding->forward(host.stream, {view(two, {2}), view(table, {4, 2}), view(y, {3, 2})});
      },
      {"embedding forward", "y", "[3, 2]", "[2, 2]"});
  for (std::int32_t token : {-1, 4}) {
    Host other;
    const Ints ids = {0, token, 1};
    other->embedding->forward(other.stream, {view(ids, {3}), view(table, {4, 2}), view(y, {3, 2})});
    expect_refused([&] { other.finish(); }, {"embedding", std::to_string(token).c_str(), "4 rows"});
  }
}

TEST(HostEmbedding, MatchesTheReference) {
  Host host;
  for (auto [tokens, vocabulary, hidden] : {std::array<std::int64_t, 3>{0, 3, 5}, {1, 1, 1}, {7, 3, 0}, {53, 11, 67}}) {
    const Ints ids = some_ids(tokens, vocabulary);
    const std::vector<Floats> got = run_embedding(host, tokens, vocabulary, hidden, ids);
    const Doubles table = to_doubles(random_floats(vocabulary * hidden, 1)),
                  dy = to_doubles(random_floats(tokens * hidden, 2));
    Doubles y(tokens * hidden), dtable(table.size());
    reference::embedding_forward(tokens, hidden, ids.data(), table.data(), y.data());
    reference::embedding_backward(tokens, hidden, ids.data(), dy.data(), dtable.data());
    expect_close("y", got[0], y, 0);
    expect_close("dtable", got[1], dtable, 1e-6, 0.25);
  }
}

TEST(HostEmbedding, GivesTheSameBitsWithAnyNumberOfThreads) {
  expect_same_bits_with_any_threads([](Host& host) { return run_embedding(host, 501, 13, 200, some_ids(501, 13)); });
}

TEST(HostElementwise, AddsAlsoInPlace) {
  Host host;
  for (std::int64_t n : {0, 1, 13, 70001}) {
    Floats a = random_floats(n, 1), b = random_floats(n, 2), y = nans(n);
    Doubles want(n);
    reference::add(n, to_doubles(a).data(), to_doubles(b).data(), want.data());
    host->elementwise->add(host.stream, view(a, {n}), view(b, {n}), view(y, {n}));
    host.finish();
    expect_close("y", y, want, 1e-7);
    host->elementwise->add(host.stream, view(a, {n}), view(b, {n}), view(a, {n}));
    host.finish();
    EXPECT_EQ(a, y);
  }
  const Floats two(2), three(3);
  expect_refused([&] { host->elementwise->add(host.stream, view(two, {2}), view(three, {3}), view(two, {2})); },
                 {"add", "b", "[3]", "[2]"});
}

double square_sum(Host& host, const Floats& x, double before) {
  Doubles sum = {before};
  host->elementwise->square_sum(host.stream, view(x, {static_cast<std::int64_t>(x.size())}), view(sum, {1}));
  host.finish();
  return sum[0];
}

TEST(HostElementwise, SumsSquaresInDoubleTheSameForAnyNumberOfThreads) {
  Host one, three(3);
  for (std::int64_t n : {0, 1, 13, 70001, 3000017}) {
    const Floats x = random_floats(n, 1);
    double want = 2;
    reference::square_sum(n, x.data(), &want);
    EXPECT_NEAR(square_sum(one, x, 2), want, 1e-12 * want);
    EXPECT_EQ(square_sum(one, x, 2), square_sum(three, x, 2));
  }
  EXPECT_TRUE(std::isfinite(square_sum(one, Floats(1000, 3e38f), 0)));
  Floats x(70001, 1);
  x[70000] = std::nanf("");
  EXPECT_TRUE(std::isnan(square_sum(one, x, 0)));
  x[70000] = INFINITY;
  EXPECT_TRUE(std::isinf(square_sum(one, x, 0)));
}

// Sums made apart, added in order, have the bits of sums made one after the other.
TEST(HostElementwise, AddsInOrder) {
  Host host;
  const Floats parts[] = {random_floats(7, 1), random_floats(70001, 2), random_floats(300, 3)};
  double together = 0.25;
  Doubles terms, sum = {0.25};
  for (const Floats& part : parts) {
    together = square_sum(host, part, together);
    terms.push_back(square_sum(host, part, 0));
  }
  host->elementwise->add_in_order(host.stream, view(terms, {3}), view(sum, {1}));
  host.finish();
  EXPECT_EQ(sum[0], together);
  expect_refused([&] { host->elementwise->add_in_order(host.stream, view(terms, {3}), view(terms, {3})); },
                 {"add_in_order", "sum", "[3]", "[1]"});
}

std::pair<std::int64_t, std::int64_t> hash_of(Host& host, const Floats& x) {
  std::vector<std::int64_t> hash = {1, 2};
  host->elementwise->hash(host.stream, view(x, {static_cast<std::int64_t>(x.size())}), view(hash, {2}));
  host.finish();
  return {hash[0], hash[1]};
}

TEST(HostElementwise, HashesBitsTheSameForAnyNumberOfThreads) {
  Host one, three(3);
  for (std::int64_t n : {0, 1, 13, 70001}) {
    const Floats x = random_floats(n, 1);
    const auto hash = hash_of(one, x);
    EXPECT_EQ(hash.first, static_cast<std::int64_t>(reference::hash(x.data(), 0, n)));
    EXPECT_EQ(hash.second, ~hash.first);
    EXPECT_EQ(hash_of(three, x), hash);
  }
  Floats x = random_floats(1000, 2);
  std::set<std::int64_t> hashes = {hash_of(one, x).first};
  std::swap(x[0], x[999]);  // the same elements in another order
  hashes.insert(hash_of(one, x).first);
  x[500] = std::nextafterf(x[500], 1);  // one bit
  hashes.insert(hash_of(one, x).first);
  x[0] = 0.0f;
  hashes.insert(hash_of(one, x).first);
  x[0] = -0.0f;  // equal, and other bits
  hashes.insert(hash_of(one, x).first);
  EXPECT_EQ(hashes.size(), 5u);
  const Floats three_of(3);
  std::vector<std::int64_t> small(1);
  expect_refused([&] { one->elementwise->hash(one.stream, view(three_of, {3}), view(small, {1})); },
                 {"hash", "[1]", "[2]"});
}

TEST(HostElementwise, TakesReciprocals) {
  Host host;
  for (double value : {0.0, 4.0, -0.1}) {
    const Doubles x = {value};
    Floats y = nans(1);
    host->elementwise->reciprocal(host.stream, view(x, {1}), view(y, {1}));
    host.finish();
    EXPECT_EQ(y[0], value == 0 ? 0 : static_cast<float>(1 / value));
  }
}

TEST(HostElementwise, ClipsAsTheReference) {
  Host host;
  const double nan = std::nan("");
  for (auto [squares, loss, norm] : {std::array{25.0, 1.0, 1.0},
                                     {25.0, 1.0, 0.0},
                                     {25.0, 1.0, 7.0},
                                     {0.0, 1.0, 1.0},
                                     {nan, 1.0, 1.0},
                                     {1.0, nan, 1.0},
                                     {INFINITY, 1.0, 1.0},
                                     {1.0, -INFINITY, 0.0}}) {
    const Doubles s = {squares}, l = {loss};
    Floats scale = nans(1);
    Ints finite = {7};
    host->elementwise->clip(host.stream, {view(s, {1}), view(l, {1}), norm, view(scale, {1}), view(finite, {1})});
    host.finish();
    float want_scale;
    std::int32_t want_finite;
    reference::clip(squares, loss, norm, &want_scale, &want_finite);
    EXPECT_EQ(scale[0], want_scale);
    EXPECT_EQ(finite[0], want_finite);
  }
}

std::vector<Floats> run_adamw(Host& host, std::int64_t n, std::uint64_t step, std::int32_t finite) {
  Floats w = random_floats(n, 1), m = random_floats(n, 2, 0.1f), v = random_floats(n, 3, 0.1f);
  const Floats g = random_floats(n, 4), scale = {0.7f};
  const Ints flag = {finite};
  for (float& value : v) value = std::abs(value);
  host->adamw->update(host.stream, {view(w, {n}), view(g, {n}), view(m, {n}), view(v, {n}), 1e-2, 0.9, 0.95, 1e-8, 0.1,
                                    step, view(scale, {1}), view(flag, {1})});
  host.finish();
  return {w, m, v};
}

TEST(HostAdamW, MatchesTheReference) {
  Host host;
  for (std::int64_t n : {0, 1, 13, 40001}) {
    for (std::uint64_t step : {1, 2, 1000000}) {
      Doubles w = to_doubles(random_floats(n, 1)), m = to_doubles(random_floats(n, 2, 0.1f));
      Doubles v = to_doubles(random_floats(n, 3, 0.1f));
      const Doubles g = to_doubles(random_floats(n, 4));
      for (double& value : v) value = std::abs(value);
      reference::adamw<double>({1e-2, 0.9, 0.95, 1e-8, 0.1, step}, n, g.data(), static_cast<double>(0.7f), true,
                               w.data(), m.data(), v.data());
      const std::vector<Floats> got = run_adamw(host, n, step, 1);
      expect_close("weight", got[0], w, 1e-6);
      expect_close("exp_avg", got[1], m, 1e-6);
      expect_close("exp_avg_sq", got[2], v, 1e-6);
    }
  }
}

TEST(HostAdamW, ChangesNothingWhenTheStepIsNotFinite) {
  Host host;
  const std::vector<Floats> got = run_adamw(host, 13, 1, 0);
  EXPECT_EQ(got[0], random_floats(13, 1));
  EXPECT_EQ(got[1], random_floats(13, 2, 0.1f));
}

TEST(HostAdamW, RefusesShapesThatDoNotFitAndStepZero) {
  Host host;
  const Floats two(2), three(3), one(1);
  const Ints finite = {1};
  const auto update = [&](const Floats& gradient, std::uint64_t step) {
    const TensorView w = view(two, {2}), g = view(gradient, {static_cast<std::int64_t>(gradient.size())});
    host->adamw->update(host.stream, {w, g, w, w, 1, 0.9, 0.9, 1, 0, step, view(one, {1}), view(finite, {1})});
  };
  expect_refused([&] { update(three, 1); }, {"adamw", "gradient", "[3]", "[2]"});
  expect_refused([&] { update(two, 0); }, {"adamw", "step"});
}

TEST(HostAdamW, GivesTheSameBitsWithAnyNumberOfThreads) {
  expect_same_bits_with_any_threads([](Host& host) { return run_adamw(host, 100003, 3, 1); });
}

}  // namespace
}  // namespace ananke::host
