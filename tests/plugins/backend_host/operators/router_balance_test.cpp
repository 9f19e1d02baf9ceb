// The host's router balance against the reference.
#include "runtime/operators/reference/router_balance.h"

#include "tests/plugins/backend_host/operators/fixture.h"

namespace ananke::host {
namespace {

using reference::BalanceSizes;

// Whole counts, then sums between 0 and 10.
Doubles some_statistics(const BalanceSizes& n, std::int64_t microbatches, unsigned seed) {
  std::mt19937 engine(seed);
  Doubles values(static_cast<std::size_t>(microbatches * n.layers * n.row()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool count = static_cast<std::int64_t>(i) % n.row() < n.experts;
    values[i] = count ? static_cast<double>(engine() % 7) : static_cast<double>(engine() % 1000) / 100;
  }
  return values;
}

void expect_near(const char* name, const Doubles& got, const Doubles& want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], bound * (std::abs(want[i]) + 1e-3)) << name << "[" << i << "]";
  }
}

TEST(HostRouterBalance, MatchesTheReference) {
  for (const BalanceSizes& n : {BalanceSizes{0, 4}, {1, 1}, {1, 8}, {3, 5}, {7, 33}}) {
    SCOPED_TRACE(n.layers);
    Host host;
    const Doubles statistics = some_statistics(n, 2, 1);
    const Shape rows{n.layers, n.row()};
    const TensorView both = view(statistics, {2, n.layers, n.row()});
    const TensorView second = both.reshaped({2 * n.layers, n.row()})
                                  .reshaped({2 * n.layers * n.row()})
                                  .slice(n.layers * n.row(), n.layers * n.row())
                                  .reshaped(rows);
    const double* const from = statistics.data() + n.layers * n.row();
    Doubles total(n.experts + 2, 9), losses = {1, 2}, load(n.layers * (n.experts + 1), 9), summary(n.layers * 6, 9);
    Doubles want_total = total, want_losses = losses, want_load = load, want_summary = summary,
            want_factors(n.experts + 1);
    Floats factors(n.experts + 1, 9), bias = random_floats(n.layers * n.experts, 2), want_bias = bias;
    const Floats scale = {0.01f}, rate = random_floats(n.layers, 3);
    const Ints finite = {1};
    host->router_balance->collect(host.stream, {second, 13, 11, view(total, {n.experts + 2})});
    host->router_balance->factors(host.stream, {second, view(total, {n.experts + 2}), view(scale, {1}), 0.03, 0.02,
                                                view(factors, {n.experts + 1}), view(losses, {2})});
    const TensorView loads = view(load, {n.layers, n.experts + 1}), biases = view(bias, {n.layers, n.experts});
    host->router_balance->load(host.stream, {both, loads});
    host->router_balance->update_bias(host.stream, {loads, view(rate, {n.layers}), view(finite, {1}), biases});
    host->router_balance->summarise(host.stream, {loads, biases, view(summary, {n.layers, 6})});
    host.finish();
    reference::balance_collect(n, from, 13, 11, want_total.data());
    reference::balance_factors(n, from, want_total.data(), double{scale[0]}, 0.03, 0.02, want_factors.data(),
                               want_losses.data());
    reference::balance_load(n, 2, statistics.data(), want_load.data());
    reference::balance_update_bias(n, want_load.data(), rate.data(), true, want_bias.data());
    reference::balance_summarise(n, want_load.data(), want_bias.data(), want_summary.data());
    EXPECT_EQ(total, want_total);
    expect_near("losses", losses, want_losses, 1e-12);
    expect_near("factors", to_doubles(factors), want_factors, 1e-6);
    expect_near("load", load, want_load, 1e-12);
    EXPECT_EQ(bias, want_bias);
    expect_near("summary", summary, want_summary, 1e-12);
  }
}

// Counts [6, 2, 0, 0] of four experts; beside it a layer that is not balanced.
TEST(HostRouterBalance, MovesTheBiasBySignWithTheMeanRemoved) {
  Host host;
  const Doubles load = {6, 2, 0, 0, 0.5, 3, 3, 1, 1, 0.5};
  const Floats rate = {1e-3f, 0};
  Floats bias(8);
  const Ints finite = {1}, not_finite = {0};
  const auto update = [&](const Ints& flag) {
    host->router_balance->update_bias(host.stream,
                                      {view(load, {2, 5}), view(rate, {2}), view(flag, {1}), view(bias, {2, 4})});
    host.finish();
  };
  update(not_finite);
  EXPECT_EQ(bias, Floats(8));
  update(finite);
  const Floats want = {-1.25e-3f, -0.25e-3f, 0.75e-3f, 0.75e-3f, 0, 0, 0, 0};
  for (int i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(bias[i], want[i]) << i;
  EXPECT_NEAR(bias[0] + bias[1] + bias[2] + bias[3], 0, 1e-9);
}

TEST(HostRouterBalance, LeavesAnEvenLoadAlone) {
  Host host;
  const Doubles load = {3, 3, 3, 0.5};
  const Floats rate = {1};
  Floats bias = {0.25f, -0.5f, 0.25f};
  const Ints finite = {1};
  host->router_balance->update_bias(host.stream,
                                    {view(load, {1, 4}), view(rate, {1}), view(finite, {1}), view(bias, {1, 3})});
  host.finish();
  EXPECT_EQ(bias, (Floats{0.25f, -0.5f, 0.25f}));
}

TEST(HostRouterBalance, SummarisesARouterWithoutBias) {
  Host host;
  const Doubles load = {4, 0, 2, 1.5};
  Doubles summary(6, 9);
  host->router_balance->summarise(host.stream, {view(load, {1, 4}), {}, view(summary, {1, 6})});
  host.finish();
  EXPECT_EQ(summary, (Doubles{0, 4, 6, 1.5, 0, 0}));
}

TEST(HostRouterBalance, RefusesShapesThatDoNotFit) {
  Host host;
  const Doubles statistics(20), total(6), load(10);
  const Floats bias(8), rate(2);
  const Ints finite(1);
  expect_refused(
      [&] {
        host->router_balance->collect(host.stream, {view(statistics, {4, 5}), 1, 1, view(total, {6})});
      },
      {"router balance collect", "[4, 5]"});
  expect_refused(
      [&] {
        host->router_balance->collect(host.stream, {view(statistics, {5, 4}), 1, 1, view(total, {6})});
      },
      {"router balance collect", "total", "[6]", "[3]"});
  expect_refused(
      [&] {
        host->router_balance->update_bias(host.stream,
                                          {view(load, {2, 5}), view(rate, {2}), view(finite, {1}), view(bias, {4, 2})});
      },
      {"router balance update_bias", "bias", "[4, 2]", "[2, 4]"});
}

}  // namespace
}  // namespace ananke::host
