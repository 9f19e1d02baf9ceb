// How much of the token exchange hides under the experts: one MoE layer after the other on two ranks, with a network
// that sleeps for every byte and experts that sleep for every chunk, so that what is measured is the order of work
// alone.
//   expert_overlap_bench [milliseconds of a layer's experts in its forward [of its exchange, both ways]]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/plugins/ep/layer_run.h"

namespace ananke::testing {
namespace {

constexpr int layers = 6;

struct Load {
  double compute, exchange;  // seconds of a layer's forward; backward computes twice as long and sends as much
};

void sleep_on(Stream& stream, double seconds) {
  stream.run_on_host([seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
}

RankReport measure(const LayerCase& c, int chunks, const Load& load, std::int64_t bytes_of_layer) {
  LayerHooks hooks;
  hooks.exchange_begins = [&](int, Stream& exchange, std::int64_t bytes) {
    const double part = static_cast<double>(bytes) / static_cast<double>(bytes_of_layer);
    if (load.exchange > 0) sleep_on(exchange, load.exchange * part);
  };
  hooks.mlp_begins = [&](int, Stream& compute, int, bool backward) {
    if (load.compute > 0) sleep_on(compute, (backward ? 2 : 1) * load.compute / chunks);
  };
  return sweep({2, 1, [&](int) { return c; }, [&](int) { return "counts: HOST chunks: " + std::to_string(chunks); },
                hooks})[0]
      .ranks[0];
}

void print(const char* what, int chunks, double compute, double exchange, double seconds, double nothing) {
  // A layer's first chunk arrives and its last one returns uncovered.
  const double ideal = layers * (std::max(compute, exchange) + std::min(compute, exchange) / chunks) + nothing;
  std::printf("%-9s %6d %12.1f %12.1f %12.1f %12.1f %7.2f\n", what, chunks, 1e3 * layers * compute,
              1e3 * layers * exchange, 1e3 * ideal, 1e3 * seconds, seconds / ideal);
}

int run(const Load& load) {
  const LayerCase c{.tokens = {512, 512}, .experts = 8, .k = 2, .hidden = 64, .width = 16, .layers = layers};
  const RankReport still = measure(c, 1, {0, 0}, 1);
  const std::uint64_t bytes =
      bytes_of(still.traffic, Direction::dispatch) + bytes_of(still.traffic, Direction::combine);
  std::printf("%d layers, 2 ranks; without any delay %.1f ms forward, %.1f ms backward\n", layers,
              1e3 * still.forward_seconds, 1e3 * still.backward_seconds);
  std::printf("%-9s %6s %12s %12s %12s %12s %7s\n", "", "chunks", "experts ms", "exchange ms", "ideal ms",
              "measured ms", "ratio");
  double serial = 0, best = 0;
  for (const int chunks : {1, 2, 4, 8}) {
    const RankReport report = measure(c, chunks, load, static_cast<std::int64_t>(bytes) / layers);
    print("forward", chunks, load.compute, load.exchange, report.forward_seconds, still.forward_seconds);
    print("backward", chunks, 2 * load.compute, load.exchange, report.backward_seconds, still.backward_seconds);
    const double whole = report.forward_seconds + report.backward_seconds;
    if (chunks == 1) serial = whole;
    best = best == 0 ? whole : std::min(best, whole);
  }
  std::printf("serial %.1f ms, overlapped %.1f ms: %.2f of it\n", 1e3 * serial, 1e3 * best, best / serial);
  return best < serial ? 0 : 1;
}

}  // namespace
}  // namespace ananke::testing

int main(int argc, char** argv) {
  const double compute = argc > 1 ? std::atof(argv[1]) : 60, exchange = argc > 2 ? std::atof(argv[2]) : 60;
  if (!(compute >= 0 && exchange >= 0 && compute <= 1e5 && exchange <= 1e5)) {
    std::fprintf(stderr, "expert_overlap_bench: give times of 0 to 100000 milliseconds\n");
    return 2;
  }
  return ananke::testing::run({compute / 1e3, exchange / 1e3});
}
