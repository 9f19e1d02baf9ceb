// Two thousand real clients within a second, a hundred of them half a minute late.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>

#include "tests/runtime/control/server_thread.h"

namespace ananke {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

TEST(TwoThousandClients, JoinWithinTheDeadlineThoughSomeAreHalfAMinuteLate) {
  constexpr int ranks = 2000;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < 4 * ranks) {
    GTEST_SKIP() << "fewer open files are allowed (ulimit -n) than " << 4 * ranks;
  }
  ServerThread server(ranks, {.join = seconds(120), .exchange = seconds(120), .heartbeat = seconds(60)});
  std::atomic<int> in_time{0}, right{0};
  std::vector<std::thread> threads;
  const auto begin = Clock::now();
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const bool late = rank % 20 == 7;
      if (late) std::this_thread::sleep_until(begin + seconds(30));
      auto options = server.client_options(rank);
      options.join_deadline = seconds(60);
      const auto client = ControlClient::connect(std::move(options));
      if (!late) ++in_time;
      const std::vector<int> pair{rank & ~1, rank | 1};
      const auto blobs = client->exchange("pair", pair, std::to_string(rank));
      right += blobs.size() == 2 && blobs[1] == std::to_string(rank | 1) ? 1 : 0;
      client->finish(0);
    });
  }
  while (in_time < ranks - ranks / 20 && Clock::now() - begin < seconds(60)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::printf("%d clients joined within %.2f s\n", in_time.load(),
              std::chrono::duration<double>(Clock::now() - begin).count());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, ranks);
  EXPECT_TRUE(server.events(ControlEvent::Kind::not_joined).empty());
  EXPECT_TRUE(server.events(ControlEvent::Kind::disconnected).empty());
}

}  // namespace
}  // namespace ananke
