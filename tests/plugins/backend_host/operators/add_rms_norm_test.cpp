#include "runtime/operators/reference/add_rms_norm.h"

#include "tests/plugins/backend_host/operators/fixture.h"

namespace ananke::host {
namespace {

constexpr double eps = 1e-6;

struct Variant {
  bool delta, in_place, dh_in;
};

std::vector<Floats> run(Host& host, const AddRmsNorm::Sizes& n, const Variant& how) {
  const std::int64_t size = n.rows * n.width;
  Floats x = random_floats(size, 1), delta = random_floats(size, 2), w = random_floats(n.width, 3), h = nans(size);
  const Floats dy = random_floats(size, 4);
  Floats y = nans(size), dh = how.dh_in ? random_floats(size, 5) : nans(size), dw(n.width, 0.5f);
  const Shape shape{n.rows, n.width};
  Scratch saved(host->add_rms_norm->saved(n)), workspace(host->add_rms_norm->workspace(n));
  const TensorView vh = view(how.in_place ? x : h, shape);
  host->add_rms_norm->forward(host.stream,
                              {view(x, shape), how.delta ? view(delta, shape) : TensorView{}, view(w, {n.width}), vh,
                               view(y, shape), eps, saved.region(), workspace.region()});
  host->add_rms_norm->backward(host.stream,
                               {vh, view(w, {n.width}), view(dy, shape), how.dh_in ? view(dh, shape) : TensorView{},
                                view(dh, shape), view(dw, {n.width}), eps, saved.region(), workspace.region()});
  host.finish();
  return {how.in_place ? x : h, y, dh, dw};
}

void compare(const AddRmsNorm::Sizes& n, const Variant& how) {
  Host host;
  const std::int64_t size = n.rows * n.width;
  const Doubles x = to_doubles(random_floats(size, 1)), delta = to_doubles(random_floats(size, 2));
  const Doubles w = to_doubles(random_floats(n.width, 3)), dy = to_doubles(random_floats(size, 4));
  Doubles h(size), y(size), dh = to_doubles(random_floats(size, 5)), dw(n.width);
  reference::add_rms_norm_forward(n.rows, n.width, eps, x.data(), how.delta ? delta.data() : nullptr, w.data(),
                                  h.data(), y.data());
  reference::add_rms_norm_backward(n.rows, n.width, eps, h.data(), w.data(), dy.data(), how.dh_in ? dh.data() : nullptr,
                                   dh.data(), dw.data());
  const std::vector<Floats> got = run(host, n, how);
  expect_close("h", got[0], h, 1e-7);
  expect_close("y", got[1], y, 5e-7);
  expect_close("dh", got[2], dh);
  expect_close("dweight", got[3], dw, 2e-6, 0.5);
}

TEST(HostAddRmsNorm, MatchesTheReferenceInEveryVariant) {
  for (const AddRmsNorm::Sizes& n : {AddRmsNorm::Sizes{0, 7}, {1, 1}, {5, 13}, {131, 67}, {3, 6144}}) {
    for (int variant = 0; variant < 8; ++variant) {
      compare(n, {(variant & 1) != 0, (variant & 2) != 0, (variant & 4) != 0});
      if (testing::Test::HasFatalFailure()) FAIL() << n.rows << " x " << n.width << ", variant " << variant;
    }
  }
}

TEST(HostAddRmsNorm, TakesAnEmptyHWhereThereIsNothingToAdd) {
  Host host;
  const Floats x = random_floats(6, 1), w = random_floats(3, 2);
  Floats y = nans(6);
  Scratch saved(host->add_rms_norm->saved({2, 3}));
  host->add_rms_norm->forward(
      host.stream,
      {view(x, {2, 3}), TensorView{}, view(w, {3}), TensorView{}, view(y, {2, 3}), eps, saved.region(), {}});
  host.finish();
  EXPECT_EQ(x, random_floats(6, 1));
  EXPECT_FALSE(has_nan(y));
}

TEST(HostAddRmsNorm, RefusesShapesThatDoNotFitAndMemoryThatIsTooSmall) {
  Host host;
  const Floats six(6), three(3), two(2);
  Scratch saved(host->add_rms_norm->saved({2, 3}));
  const auto forward = [&](const TensorView& weight, const TensorView& delta, const TensorView& h, Region region) {
    host->add_rms_norm->forward(host.stream, {view(six, {2, 3}), delta, weight, h, view(six, {2, 3}), eps, region, {}});
  };
  expect_refused([&] { forward(view(two, {2}), {}, {}, saved.region()); },
                 {"add_rms_norm forward", "weight", "[2]", "[3]"});
  expect_refused(
      [&] {
        forward(view(three, {3}), view(six, {2, 3}), {}, saved.region());
      },
      {"add_rms_norm forward", "h"});
  expect_refused(
      [&] {
        forward(view(three, {3}), {}, {}, {saved.region().data, 4});
      },
      {"add_rms_norm forward", "saved", "4 bytes"});
  expect_refused(
      [&] {
        host->add_rms_norm->backward(host.stream, {view(six, {2, 3}),
                                                   view(three, {3}),
                                                   view(six, {3, 2}),
                                                   {},
                                                   view(six, {2, 3}),
                                                   view(three, {3}),
                                                   eps,
                                                   saved.region(),
                                                   {}});
      },
      {"add_rms_norm backward", "dy", "[3, 2]", "[2, 3]"});
}

TEST(HostAddRmsNorm, GivesTheSameBitsWithAnyNumberOfThreads) {
  expect_same_bits_with_any_threads([](Host& host) { return run(host, {389, 131}, {true, false, true}); });
}

TEST(HostAddRmsNorm, LetsNanThrough) {
  Host host;
  Floats x = random_floats(6, 1), w = random_floats(3, 2), y(6);
  x[4] = std::nanf("");
  Scratch saved(host->add_rms_norm->saved({2, 3}));
  host->add_rms_norm->forward(host.stream,
                              {view(x, {2, 3}), {}, view(w, {3}), {}, view(y, {2, 3}), eps, saved.region(), {}});
  host.finish();
  for (int j = 0; j < 3; ++j) {
    EXPECT_FALSE(std::isnan(y[j]));
    EXPECT_TRUE(std::isnan(y[3 + j]));
  }
}

}  // namespace
}  // namespace ananke::host
