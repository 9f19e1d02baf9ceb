#include "runtime/operators/reference/head_loss.h"

#include "tests/plugins/backend_host/operators/fixture.h"

namespace ananke::host {
namespace {

constexpr float scale = 0.125f;

struct Result {
  Floats logits, dx, dweight;
  double forward_loss, loss;
};

Ints some_targets(const HeadLoss::Sizes& n) {
  Ints targets(n.tokens);
  for (std::int64_t t = 0; t < n.tokens; ++t)
    targets[t] = static_cast<std::int32_t>(t % 4 == 1 ? -1 : t * 7 % n.vocabulary);
  return targets;
}

Result run(Host& host, const HeadLoss::Sizes& n, const Floats& x, const Ints& targets, bool want_logits) {
  const Floats w = random_floats(n.vocabulary * n.hidden, 2), scales = {scale};
  const std::int64_t size = n.tokens * n.vocabulary;
  Floats logits = nans(size), same = nans(size), dx = nans(n.tokens * n.hidden), dw(w.size(), 0.5f);
  Doubles first = {10}, second = {10};
  Scratch one(host->head_loss->workspace(n)), two(host->head_loss->workspace(n));
  const TensorView vx = view(x, {n.tokens, n.hidden}), vw = view(w, {n.vocabulary, n.hidden}),
                   vt = view(targets, {n.tokens});
  const Shape whole{n.tokens, n.vocabulary};
  host->head_loss->forward(
      host.stream, {vx, vw, vt, view(first, {1}), want_logits ? view(logits, whole) : TensorView{}, one.region()});
  host->head_loss->forward_backward(
      host.stream, {vx, vw, vt, view(second, {1}), view(scales, {1}), view(dx, {n.tokens, n.hidden}),
                    view(dw, {n.vocabulary, n.hidden}), want_logits ? view(same, whole) : TensorView{}, two.region()});
  host.finish();
  if (want_logits && size > 0) {
    EXPECT_EQ(std::memcmp(logits.data(), same.data(), logits.size() * sizeof(float)), 0);
  }
  return {logits, dx, dw, first[0], second[0]};
}

TEST(HostHeadLoss, MatchesTheReference) {
  Host host;
  for (const HeadLoss::Sizes& n :
       {HeadLoss::Sizes{0, 3, 5}, {1, 1, 1}, {5, 0, 3}, {13, 7, 11}, {1031, 17, 67}, {3, 5, 1009}}) {
    const Floats x = random_floats(n.tokens * n.hidden, 1);
    const Ints targets = some_targets(n);
    const Doubles dx64 = to_doubles(x), w = to_doubles(random_floats(n.vocabulary * n.hidden, 2));
    Doubles logits(n.tokens * n.vocabulary), dx(x.size()), dw(w.size());
    double loss = 10;
    const reference::HeadSizes r{n.tokens, n.hidden, n.vocabulary};
    reference::head_loss<double>(r, dx64.data(), w.data(), targets.data(), scale, &loss, dx.data(), dw.data(),
                                 logits.data());
    const Result got = run(host, n, x, targets, true);
    EXPECT_NEAR(got.loss, loss, 1e-6 * loss);
    EXPECT_EQ(got.loss, got.forward_loss);
    expect_close("logits", got.logits, logits);
    expect_close("dx", got.dx, dx);
    expect_close("dweight", got.dweight, dw, 2e-6, 0.5);
    EXPECT_EQ(run(host, n, x, targets, false).loss, got.loss);
  }
}

TEST(HostHeadLoss, GivesTheSameBitsWithAnyNumberOfThreads) {
  const HeadLoss::Sizes n{733, 67, 301};
  Doubles losses;
  expect_same_bits_with_any_threads([&](Host& host) {
    const Result got = run(host, n, random_floats(n.tokens * n.hidden, 1), some_targets(n), true);
    losses.push_back(got.loss);
    return std::vector{got.logits, got.dx, got.dweight};
  });
  EXPECT_EQ(losses, Doubles(3, losses[0]));
}

TEST(HostHeadLoss, StaysFiniteWithLargeLogitsAndLetsNanThrough) {
  Host host;
  const HeadLoss::Sizes n{3, 2, 5};
  Floats x(6, 1e4f);
  const Ints targets = {0, 1, 2};
  EXPECT_TRUE(std::isfinite(run(host, n, x, targets, false).loss));
  x[2] = std::nanf("");
  const Result got = run(host, n, x, targets, false);
  EXPECT_TRUE(std::isnan(got.loss));
  EXPECT_TRUE(has_nan(got.dx));
  EXPECT_TRUE(std::isfinite(run(host, n, x, {0, -1, 2}, false).loss));  // a token without target is not looked at
  x[2] = INFINITY;
  EXPECT_FALSE(std::isfinite(run(host, n, x, targets, false).loss));
}

TEST(HostHeadLoss, RefusesShapesThatDoNotFitAndTargetsOutsideTheVocabulary) {
  const HeadLoss::Sizes n{2, 3, 4};
  const Floats x(6), w(12);
  const Ints outside = {0, 4}, two(2), three(3);
  Doubles loss = {0};
  Host host;
  Scratch workspace(host->head_loss->workspace(n));
  const auto forward = [&](const TensorView& targets, Region region) {
    host->head_loss->forward(host.stream, {view(x, {2, 3}), view(w, {4, 3}), targets, view(loss, {1}), {}, region});
  };
  expect_refused([&] { forward(view(three, {3}), workspace.region()); },
                 {"head_loss forward", "targets", "[3]", "[2]"});
  expect_refused(
      [&] {
        forward(view(two, {2}), {workspace.region().data, 8});
      },
      {"head_loss forward", "workspace", "8 bytes"});

  forward(view(outside, {2}), workspace.region());
  expect_refused([&] { host.finish(); }, {"head_loss", "target 4", "4"});
}

}  // namespace
}  // namespace ananke::host
