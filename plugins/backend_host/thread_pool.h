// Threads that share the work of one operator call. Owned by one backend (ranks may be threads of one process, each
// with a pool of its own).
//
// Results must not depend on the number of threads: work is cut into tasks by sizes alone, a task writes outputs of its
// own, and no sum is cut by thread. Which thread runs a task is then without effect, so tasks are taken as threads
// come.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ananke {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1, the calling thread of run() included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept { return threads_; }

  // body(task, worker) for every task in [0, tasks), worker in [0, threads()): for scratch memory of its own. Returns
  // when all are done; throws what a task threw first (tasks not begun by then are dropped). Callers on several threads
  // take turns. A body must not call run().
  template <class Body>
  void run(std::int64_t tasks, const Body& body) {
    if (threads_ == 1 || tasks <= 1) {
      for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
      return;
    }
    run_shared(
        tasks, [](const void* b, std::int64_t task, int worker) { (*static_cast<const Body*>(b))(task, worker); },
        &body);
  }

  // body(begin, end) for consecutive ranges of `block` items (the last may be shorter) that cover [0, count).
  template <class Body>
  void run_blocks(std::int64_t count, std::int64_t block, const Body& body) {
    run((count + block - 1) / block,
        [&](std::int64_t task, int) { body(task * block, std::min(count, (task + 1) * block)); });
  }

 private:
  using Call = void (*)(const void* body, std::int64_t task, int worker);
  void run_shared(std::int64_t tasks, Call call, const void* body);
  void serve(int worker);
  void take_tasks(int worker);

  const int threads_;
  std::mutex turn_;  // held by the caller whose tasks run
  std::mutex guard_;
  std::condition_variable wake_, done_;
  std::uint64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  const char* plugin_ = nullptr;  // the call that the tasks are part of (plugin_call.h)
  std::int64_t tasks_ = 0;
  Call call_ = nullptr;
  const void* body_ = nullptr;
  std::atomic<std::int64_t> next_{0};
  std::vector<std::thread> workers_;
};

}  // namespace ananke
