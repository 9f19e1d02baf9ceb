#include "plugins/backend_host/thread_pool.h"

#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/signal_stack.h"
#include "runtime/plugin/plugin_call.h"

namespace ananke {

ThreadPool::ThreadPool(int threads) : threads_(threads) {
  ANANKE_CHECK(threads >= 1, "a thread pool of {} threads", threads);
  for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { serve(worker); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(guard_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_shared(std::int64_t tasks, Call call, const void* body) {
  std::lock_guard turn(turn_);
  {
    std::lock_guard lock(guard_);
    tasks_ = tasks;
    call_ = call;
    body_ = body;
    error_ = nullptr;
    plugin_ = PluginScope::current_text();
    next_.store(0, std::memory_order_relaxed);
    busy_ = threads_ - 1;
    ++generation_;
  }
  wake_.notify_all();
  take_tasks(0);
  std::unique_lock lock(guard_);
  done_.wait(lock, [this] { return busy_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::serve(int worker) {
  const SignalStack stack;
  std::uint64_t seen = 0;
  std::unique_lock lock(guard_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    const char* plugin = plugin_;
    lock.unlock();
    {
      const PluginEcho echo(plugin);
      take_tasks(worker);
    }
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

void ThreadPool::take_tasks(int worker) {
  try {
    for (std::int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;)
      call_(body_, task, worker);
  } catch (...) {
    next_.store(tasks_, std::memory_order_relaxed);
    std::lock_guard lock(guard_);
    if (!error_) error_ = std::current_exception();
  }
}

}  // namespace ananke
