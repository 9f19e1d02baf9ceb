#include "runtime/operators/reference/linear.h"

#include "tests/plugins/backend_host/operators/fixture.h"

namespace ananke::host {
namespace {

struct Sizes {
  std::int64_t tokens, in, out;
};

std::vector<Floats> run(Host& host, const Sizes& n, bool add_dx = false) {
  const Floats x = random_floats(n.tokens * n.in, 1), w = random_floats(n.out * n.in, 2);
  const Floats dy = random_floats(n.tokens * n.out, 3);
  Floats y = nans(n.tokens * n.out), dx = add_dx ? Floats(x.size(), 2.0f) : nans(n.tokens * n.in), dw(w.size(), 0.5f);
  const TensorView vx = view(x, {n.tokens, n.in}), vw = view(w, {n.out, n.in});
  host->linear->forward(host.stream, {vx, vw, view(y, {n.tokens, n.out})});
  host->linear->backward(
      host.stream, {vx, vw, view(dy, {n.tokens, n.out}), view(dx, {n.tokens, n.in}), add_dx, view(dw, {n.out, n.in})});
  host.finish();
  return {y, dx, dw};
}

TEST(HostLinear, RefusesShapesThatDoNotFitNamingBoth) {
  Host host;
  const Floats x(6), w(12), y(8);
  expect_refused(
      [&] {
        host->linear->forward(host.stream, {view(x, {2, 3}), view(w, {4, 3}), view(y, {4, 2})});
      },
      {"linear forward", "y", "[4, 2]", "[2, 4]"});
  expect_refused(
      [&] {
        host->linear->forward(host.stream, {view(x, {2, 3}), view(w, {3, 4}), view(y, {2, 4})});
      },
      {"linear forward", "weight", "[3, 4]", "[3, 3]"});
  expect_refused(
      [&] {
        host->linear->forward(host.stream, {view(x, {6}), view(w, {4, 3}), view(y, {2, 4})});
      },
      {"linear forward", "x", "[6]"});
  const Ints wrong(8);
  expect_refused(
      [&] {
        host->linear->forward(host.stream, {view(x, {2, 3}), view(w, {4, 3}), view(wrong, {2, 4})});
      },
      {"linear forward", "y", "i32", "f32"});
  expect_refused(
      [&] {
        host->linear->forward(host.stream, {view(x, {2, 3}), view(w, {4, 3}), TensorView{nullptr, DType::f32, {2, 4}}});
      },
      {"linear forward", "y", "no memory"});
  expect_refused(
      [&] {
        host->linear->backward(
            host.stream, {view(x, {2, 3}), view(w, {4, 3}), view(y, {2, 4}), view(x, {3, 2}), false, TensorView{}});
      },
      {"linear backward", "dx", "[3, 2]", "[2, 3]"});
}

class HostLinearSizes : public testing::TestWithParam<Sizes> {};

TEST_P(HostLinearSizes, MatchesTheReference) {
  const Sizes n = GetParam();
  Host host;
  const Doubles x = to_doubles(random_floats(n.tokens * n.in, 1)), w = to_doubles(random_floats(n.out * n.in, 2));
  const Doubles dy = to_doubles(random_floats(n.tokens * n.out, 3));
  Doubles y(n.tokens * n.out), dx(x.size()), dw(w.size());
  reference::linear_forward(n.tokens, n.in, n.out, x.data(), w.data(), y.data());
  reference::linear_backward(n.tokens, n.in, n.out, x.data(), w.data(), dy.data(), dx.data(), false, dw.data());
  const std::vector<Floats> got = run(host, n), added = run(host, n, true);
  expect_close("y", got[0], y);
  expect_close("dx", got[1], dx);
  expect_close("dweight", got[2], dw, 2e-6, 0.5);
  expect_close("dx, added", added[1], dx, 2e-6, 2);
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostLinearSizes,
                         testing::Values(Sizes{0, 5, 3}, Sizes{3, 0, 4}, Sizes{3, 4, 0}, Sizes{1, 1, 1},
                                         Sizes{1, 37, 11}, Sizes{13, 7, 3}, Sizes{131, 67, 97}, Sizes{97, 257, 139}));

TEST(HostLinear, GivesTheSameBitsWithAnyNumberOfThreads) {
  expect_same_bits_with_any_threads([](Host& host) { return run(host, {311, 131, 257}); });
}

TEST(HostLinear, LeavesAnUnwantedGradientAlone) {
  Host host;
  const Floats x = random_floats(6, 1), w = random_floats(12, 2), dy = random_floats(8, 3);
  Floats dx = nans(6), dw(12);
  host->linear->backward(host.stream,
                         {view(x, {2, 3}), view(w, {4, 3}), view(dy, {2, 4}), view(dx, {2, 3}), false, TensorView{}});
  host->linear->backward(host.stream,
                         {view(x, {2, 3}), view(w, {4, 3}), view(dy, {2, 4}), TensorView{}, false, view(dw, {4, 3})});
  host.finish();
  EXPECT_FALSE(has_nan(dx));
  EXPECT_NE(dw, Floats(12));
}

TEST(HostLinear, LetsNanThrough) {
  Host host;
  for (std::int64_t size : {3, 64, 130}) {
    Floats x = random_floats(size * size, 1), w = random_floats(size * size, 2), y(size * size);
    w[5] = std::nanf("");
    host->linear->forward(host.stream, {view(x, {size, size}), view(w, {size, size}), view(y, {size, size})});
    host.finish();
    for (std::int64_t t = 0; t < size; ++t) EXPECT_TRUE(std::isnan(y[t * size + 5 / size])) << size << ": " << t;
  }
}

}  // namespace
}  // namespace ananke::host
