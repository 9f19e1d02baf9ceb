#include "plugins/backend_host/thread_pool.h"

#include <gtest/gtest.h>

#include <barrier>
#include <memory>
#include <string>

#include "runtime/base/error.h"
#include "runtime/plugin/plugin_call.h"

namespace ananke {
namespace {

TEST(ThreadPool, RefusesToHaveNoThreads) { EXPECT_THROW(ThreadPool(0), Error); }

TEST(ThreadPool, ThrowsWhatATaskThrewAndWorksOn) {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 20; ++round) {
      EXPECT_THROW(pool.run(50,
                            [](std::int64_t task, int) {
                              if (task == 7) fail(ErrorKind::data, "seven");
                            }),
                   Error);
      std::atomic<int> ran{0};
      pool.run(50, [&](std::int64_t, int) { ++ran; });
      EXPECT_EQ(ran, 50);
    }
  }
}

TEST(ThreadPool, RunsEveryTaskOnceWithAWorkerOfItsOwn) {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (std::int64_t tasks : {0, 1, 2, 1000}) {
      std::vector<int> ran(static_cast<std::size_t>(tasks));
      std::vector<std::int64_t> by_worker(static_cast<std::size_t>(threads));  // a data race if two had one number
      pool.run(tasks, [&](std::int64_t task, int worker) {
        ++ran[static_cast<std::size_t>(task)];
        ++by_worker[static_cast<std::size_t>(worker)];
      });
      EXPECT_EQ(ran, std::vector<int>(static_cast<std::size_t>(tasks), 1));
    }
  }
}

TEST(ThreadPool, CutsRangesWithoutGapOrOverlap) {
  ThreadPool pool(2);
  for (std::int64_t count : {0, 1, 9, 10, 11, 100}) {
    std::vector<int> seen(static_cast<std::size_t>(count));
    pool.run_blocks(count, 10, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(begin % 10, 0);
      for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
    });
    EXPECT_EQ(seen, std::vector<int>(static_cast<std::size_t>(count), 1));
  }
}

TEST(ThreadPool, LetsCallersTakeTurns) {
  ThreadPool pool(2);
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) pool.run(11, [&](std::int64_t task, int) { total += task; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 3 * 50 * 55);
}

TEST(ThreadPool, NamesThePluginItWorksForOnEveryThread) {
  ThreadPool pool(3);
  const PluginGuard guard("optimizer", "lion", "/x/lion.so", std::make_shared<CallTrail>());
  std::barrier all(3);  // so that no thread takes two tasks
  std::vector<std::string> said(3);
  const auto work = [&](std::int64_t task, int) {
    const char* text = PluginScope::current_text();
    said[static_cast<std::size_t>(task)] = text ? text : "nobody";
    all.arrive_and_wait();
  };
  guard.call("update", [&] { pool.run(3, work); });
  EXPECT_EQ(said, std::vector<std::string>(3, "optimizer plugin 'lion' (/x/lion.so), in update"));
  pool.run(3, work);
  EXPECT_EQ(said, std::vector<std::string>(3, "nobody"));
}

}  // namespace
}  // namespace ananke
