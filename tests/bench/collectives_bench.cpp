// One line per collective, transport and size: time, bandwidth of one rank's traffic, its ratio to memcpy of this run.
//   collectives_bench [ranks]        ranks are threads; Gloo talks over loopback
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "tests/plugins/backend_host/ranks.h"

namespace ananke::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double memcpy_bandwidth() {
  const std::size_t bytes = std::size_t{64} << 20;
  std::vector<char> from(bytes, 1), to(bytes, 2);
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    times.push_back(seconds_since(start));
  }
  return static_cast<double>(bytes) / median(times) + (to[bytes / 2] == 7);
}

struct Case {
  const char* name;
  std::size_t received;  // bytes that one rank gets from others
  std::function<void(Stream&)> call;
};

// `bytes`: of the whole vector, the larger side of each collective.
std::vector<Case> cases(Rank& me, Communicator& world, Buffer& a, Buffer& b, std::size_t bytes) {
  const auto size = static_cast<std::size_t>(me.size);
  const std::int64_t whole = static_cast<std::int64_t>(bytes / 4 / size * size);
  const std::int64_t block = whole / me.size;
  const TensorView big = a.view(DType::f32, {whole}), other = b.view(DType::f32, {whole});
  const std::vector<std::int64_t> counts(size, block);
  const std::size_t got = bytes / size * (size - 1);
  return {
      {"all_gather", got, [=, &world, &me](Stream& s) { world.all_gather(s, big.slice(me.rank * block, block), big); }},
      {"reduce_scatter", got, [=, &world](Stream& s) { world.reduce_scatter(s, big, other.slice(0, block)); }},
      {"all_reduce", 2 * got, [=, &world](Stream& s) { world.all_reduce(s, other, Reduction::sum); }},
      {"all_to_all", got, [=, &world](Stream& s) { world.all_to_all(s, big, counts, other, counts); }},
      {"broadcast", bytes, [=, &world](Stream& s) { world.broadcast(s, big, 0); }}};
}

void measure(Rank& me, double memcpy_rate) {
  auto world = me.communicator("world");
  Stream& stream = me.compute();
  for (std::size_t bytes : {std::size_t{64}, std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{1} << 20,
                            std::size_t{8} << 20, std::size_t{64} << 20}) {
    auto a = me.device.memory().allocate(bytes, "bench"), b = me.device.memory().allocate(bytes, "bench");
    const int rounds = bytes <= 65536 ? 100 : bytes <= (1 << 20) ? 30 : bytes <= (8 << 20) ? 10 : 4;
    for (auto& test : cases(me, *world, a, b, bytes)) {
      std::vector<double> times;
      for (int i = -2; i < rounds; ++i) {
        const auto start = Clock::now();
        test.call(stream);
        stream.synchronize();
        if (i >= 0) times.push_back(seconds_since(start));
      }
      const double time = median(times), rate = static_cast<double>(test.received) / time;
      if (me.rank == 0) {
        std::printf("%-8s %-14s %2d ranks %9zu B %10.1f us %7.2f GB/s %5.2f x memcpy\n", name_of(me.wire), test.name,
                    me.size, bytes, time * 1e6, rate / 1e9, rate / memcpy_rate);
        std::fflush(stdout);
      }
    }
  }
}

}  // namespace
}  // namespace ananke::testing

int main(int argc, char** argv) {
  using namespace ananke::testing;
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  if (ranks < 2 || ranks > 64) {
    std::fprintf(stderr, "collectives_bench: %s ranks; give a number from 2 to 64\n", argv[1]);
    return 2;
  }
  const double rate = memcpy_bandwidth();
  std::printf("memcpy of 64 MiB: %.2f GB/s\n", rate / 1e9);
  for (Wire wire : {Wire::threads, Wire::shared, Wire::gloo}) {
    for (const auto& error : run_ranks(ranks, wire, [&](Rank& me) { measure(me, rate); })) {
      if (!error.empty()) std::fprintf(stderr, "%s\n", error.c_str());
    }
  }
}
