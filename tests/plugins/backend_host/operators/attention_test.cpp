#include "runtime/operators/reference/attention.h"

#include "tests/plugins/backend_host/operators/fixture.h"

namespace ananke::host {
namespace {

constexpr double eps = 1e-6;

struct Case {
  std::int64_t query_heads, key_heads, head_dim;
  std::vector<std::int64_t> lengths;  // of the segments

  std::int64_t tokens() const { return offsets().back(); }
  std::int64_t longest() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }
  Ints offsets() const {
    Ints out = {0};
    for (std::int64_t length : lengths) out.push_back(out.back() + static_cast<std::int32_t>(length));
    return out;
  }
  Ints positions() const {
    Ints out;
    for (std::int64_t length : lengths) {
      for (std::int64_t t = 0; t < length; ++t) out.push_back(static_cast<std::int32_t>(t));
    }
    return out;
  }
  Attention::Sizes sizes() const {
    return {tokens(), query_heads, key_heads, head_dim, static_cast<std::int64_t>(lengths.size()), longest()};
  }
};

// Inputs of one case, in f32; seeds differ so that no tensor equals another.
struct Data {
  explicit Data(const Case& c)
      : offsets(c.offsets()),
        positions(c.positions()),
        q(random_floats(c.tokens() * c.query_heads * c.head_dim, 1)),
        k(random_floats(c.tokens() * c.key_heads * c.head_dim, 2)),
        v(random_floats(c.tokens() * c.key_heads * c.head_dim, 3)),
        q_norm(random_floats(c.head_dim, 4, 2)),
        k_norm(random_floats(c.head_dim, 5, 2)),
        d_o(random_floats(c.tokens() * c.query_heads * c.head_dim, 6)) {
    for (std::int64_t p = 0; p < c.longest(); ++p) {
      for (std::int64_t i = 0; i < c.head_dim / 2; ++i) {
        const double angle =
            static_cast<double>(p) * std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim));
        cosine.push_back(static_cast<float>(std::cos(angle)));
        sine.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  Ints offsets, positions;
  Floats q, k, v, q_norm, k_norm, d_o, cosine, sine;
};

Attention::Inputs inputs(const Case& c, const Data& d) {
  const Attention::Sizes n = c.sizes();
  const Shape keys{n.tokens, n.key_heads, n.head_dim}, cache{n.longest, n.head_dim / 2};
  return {view(d.q, {n.tokens, n.query_heads, n.head_dim}),
          view(d.k, keys),
          view(d.v, keys),
          view(d.q_norm, {n.head_dim}),
          view(d.k_norm, {n.head_dim}),
          view(d.cosine, cache),
          view(d.sine, cache),
          view(d.positions, {n.tokens}),
          {view(d.offsets, {n.segments + 1}), n.segments, n.longest},
          eps};
}

std::vector<Floats> run(Host& host, const Case& c, const Data& d) {
  const Attention::Sizes n = c.sizes();
  const Shape queries{n.tokens, n.query_heads, n.head_dim}, keys{n.tokens, n.key_heads, n.head_dim};
  Floats o = nans(queries.elements()), dq = o, dk = nans(keys.elements()), dv = dk;
  Floats dq_norm(n.head_dim, 0.5f), dk_norm(n.head_dim, 0.5f);
  Scratch saved(host->attention->saved(n)), workspace(host->attention->workspace(n)),
      again(host->attention->workspace(n));
  const Attention::Inputs in = inputs(c, d);
  host->attention->forward(host.stream, {in, view(o, queries), saved.region(), workspace.region()});
  host->attention->backward(
      host.stream, {in, view(o, queries), view(d.d_o, queries), view(dq, queries), view(dk, keys), view(dv, keys),
                    view(dq_norm, {n.head_dim}), view(dk_norm, {n.head_dim}), saved.region(), again.region()});
  host.finish();
  return {o, dq, dk, dv, dq_norm, dk_norm};
}

class HostAttentionCase : public testing::TestWithParam<Case> {};

TEST_P(HostAttentionCase, MatchesTheReference) {
  const Case c = GetParam();
  const Data d(c);
  Host host;
  const Doubles q = to_doubles(d.q), k = to_doubles(d.k), v = to_doubles(d.v), q_norm = to_doubles(d.q_norm);
  const Doubles k_norm = to_doubles(d.k_norm), cosine = to_doubles(d.cosine), sine = to_doubles(d.sine),
                d_o = to_doubles(d.d_o);
  const reference::AttentionInputs<double> in{c.tokens(),
                                              c.query_heads,
                                              c.key_heads,
                                              c.head_dim,
                                              q.data(),
                                              k.data(),
                                              v.data(),
                                              q_norm.data(),
                                              k_norm.data(),
                                              cosine.data(),
                                              sine.data(),
                                              d.positions.data(),
                                              d.offsets.data(),
                                              static_cast<std::int64_t>(c.lengths.size()),
                                              eps};
  Doubles o(q.size()), dq(q.size()), dk(k.size()), dv(v.size()), dq_norm(c.head_dim), dk_norm(c.head_dim);
  reference::attention_forward(in, o.data());
  reference::attention_backward(in, d_o.data(), {dq.data(), dk.data(), dv.data(), dq_norm.data(), dk_norm.data()});
  const std::vector<Floats> got = run(host, c, d);
  expect_close("o", got[0], o);
  expect_close("dq", got[1], dq, 5e-6);
  expect_close("dk", got[2], dk, 5e-6);
  expect_close("dv", got[3], dv, 5e-6);
  expect_close("dq_norm", got[4], dq_norm, 1e-5, 0.5);
  expect_close("dk_norm", got[5], dk_norm, 1e-5, 0.5);
}

INSTANTIATE_TEST_SUITE_P(Cases, HostAttentionCase,
                         testing::Values(Case{2, 1, 4, {}}, Case{1, 1, 2, {1}}, Case{4, 2, 6, {1, 1, 1}},
                                         Case{4, 2, 16, {7, 1, 13, 3}}, Case{3, 1, 8, {29}}, Case{2, 2, 32, {131}},
                                         Case{5, 1, 10, {64, 65, 63, 1}}, Case{2, 2, 4, {200, 3}}));

TEST(HostAttention, GivesTheSameBitsWithAnyNumberOfThreads) {
  const Case c{4, 2, 16, {150, 1, 70, 5}};
  const Data d(c);
  expect_same_bits_with_any_threads([&](Host& host) { return run(host, c, d); });
}

TEST(HostAttention, GivesADocumentTheSameBitsWhereverItLies) {
  const Case alone{2, 1, 8, {90}}, second{2, 1, 8, {31, 90}};
  const Data one(alone);
  Data two(second);
  const std::int64_t queries = 31 * 2 * 8, keys = 31 * 8;
  std::copy(one.q.begin(), one.q.end(), two.q.begin() + queries);
  std::copy(one.k.begin(), one.k.end(), two.k.begin() + keys);
  std::copy(one.v.begin(), one.v.end(), two.v.begin() + keys);
  Host host;
  const Floats want = run(host, alone, one)[0], got = run(host, second, two)[0];
  EXPECT_EQ(Floats(got.begin() + queries, got.end()), want);
}

TEST(HostAttention, LetsNanThroughButNotIntoOtherSegments) {
  const Case c{2, 1, 4, {3, 5, 2}};
  Host host;
  for (int which = 0; which < 3; ++which) {
    Data d(c);
    (which == 0 ? d.q : which == 1 ? d.k : d.v)[(which == 0 ? 2 : 1) * 4 * 3 + 1] = std::nanf("");  // token 3
    const Floats o = run(host, c, d)[0];
    const auto token_has_nan = [&](int t) { return has_nan(Floats(o.begin() + t * 8, o.begin() + t * 8 + 8)); };
    EXPECT_TRUE(token_has_nan(3)) << which;
    for (int t : {0, 1, 2, 8, 9}) EXPECT_FALSE(token_has_nan(t)) << which << ", token " << t;
  }
}

TEST(HostAttention, RefusesShapesSegmentsAndPositionsThatDoNotFit) {
  const Case c{4, 2, 6, {3, 2}};
  const Data d(c);
  const Shape queries{5, 4, 6};
  const auto forward = [&](const Attention::Inputs& in) {
    Host host;
    Floats o(queries.elements());
    Scratch saved(host->attention->saved(c.sizes())), workspace(host->attention->workspace(c.sizes()));
    host->attention->forward(host.stream, {in, view(o, queries), saved.region(), workspace.region()});
    host.finish();
  };
  Attention::Inputs in = inputs(c, d);
  in.v.shape = {5, 6, 2};
  expect_refused([&] { forward(in); }, {"attention forward", "v", "[5, 6, 2]", "[5, 2, 6]"});
  in = inputs(c, d);
  in.k.shape = in.v.shape = {5, 3, 4};
  expect_refused([&] { forward(in); }, {"attention forward", "k", "[5, 3, 4]", "[5, 3, 6]"});
  in = inputs(c, d);
  const Ints positions = {0, 1, 3, 0, 1};
  in.positions = view(positions, {5});
  expect_refused([&] { forward(in); }, {"attention", "position 3", "token 2", "3 are cached"});
  for (const Ints& offsets : {Ints{0, 4, 5}, Ints{0, 0, 5}, Ints{0, 3, 6}, Ints{1, 3, 5}, Ints{0, 6, 5}}) {
    in = inputs(c, d);
    in.segments.offsets = view(offsets, {3});
    expect_refused([&] { forward(in); }, {"attention: segment"});
  }
}

}  // namespace
}  // namespace ananke::host
