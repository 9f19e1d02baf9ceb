#include "plugins/backend_cuda/collective_watch.h"

#include <pthread.h>

#include <algorithm>

#include "runtime/base/signal_stack.h"

namespace ananke::cuda {

CollectiveWatch::~CollectiveWatch() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CollectiveWatch::add(Watched& watched) {
  std::lock_guard lock(mutex_);
  all_.push_back(&watched);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void CollectiveWatch::remove(Watched& watched) noexcept {
  std::lock_guard lock(mutex_);
  std::erase(all_, &watched);
}

void CollectiveWatch::run() {
  const SignalStack stack;
  pthread_setname_np(pthread_self(), "collectives");
  std::unique_lock lock(mutex_);
  while (!closing_) {
    for (Watched* watched : all_) watched->look(WatchClock::now());
    changed_.wait_for(lock, pause_, [&] { return closing_; });
  }
}

Patience::Verdict Patience::judge(std::uint64_t done, std::uint64_t begun, bool lost, WatchClock::time_point now) {
  if (done == begun) {
    idle_ = true;
    was_lost_ = false;
    return Verdict::wait;
  }
  if (idle_ || done != done_) {  // another piece is the oldest now
    idle_ = false;
    was_lost_ = false;
    done_ = done;
    since_ = now;
  }
  if (lost && !was_lost_) lost_since_ = now;
  was_lost_ = lost;
  if (lost && now - lost_since_ >= limits_.farewell) return Verdict::lost;
  return now - since_ >= limits_.deadline ? Verdict::stalled : Verdict::wait;
}

}  // namespace ananke::cuda
