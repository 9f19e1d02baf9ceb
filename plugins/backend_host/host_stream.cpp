#include "plugins/backend_host/host_stream.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/signal_stack.h"

namespace ananke {
namespace {

template <class To, class From>
To& own(From& from, const char* what) {
  auto* to = dynamic_cast<To*>(&from);
  ANANKE_CHECK(to, "{} of another backend was given to a stream or operator of the host backend", what);
  return *to;
}

}  // namespace

std::exception_ptr HostStream::Progress::wait_for(std::uint64_t piece) {
  const PluginWait wait;
  std::unique_lock lock(mutex);
  advanced.wait(lock, [&] { return done >= piece; });
  return failed_at != 0 && failed_at <= piece ? error : nullptr;
}

HostStream::HostStream(std::string name) : name_(std::move(name)) {}

HostStream::~HostStream() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  arrived_.notify_one();
  if (thread_.joinable()) thread_.join();
}

HostStream& HostStream::of(Stream& stream) { return own<HostStream>(stream, "a stream"); }

void HostStream::put(std::function<void()> work, TraceKind kind) {
  TraceLaunch launch = TraceLaunch::current();
  {
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(work), PluginScope::current(), std::move(launch), kind});
    ++issued_;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  arrived_.notify_one();
}

void HostStream::record(Event& event) {
  auto& mine = own<HostEvent>(event, "an event");
  if (mine.when_) {
    enqueue([when = mine.when_] {
      *when = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    });
  }
  std::uint64_t piece;
  {
    std::lock_guard lock(mutex_);
    piece = issued_;
  }
  std::lock_guard lock(mine.mutex_);
  mine.point_ = {progress_, piece};
}

void HostStream::wait(const Event& event) {
  HostEvent::Point point = own<const HostEvent>(event, "an event").point();
  if (!point.progress || point.progress == progress_) return;
  {
    std::lock_guard lock(point.progress->mutex);
    if (point.progress->done >= point.piece && !point.progress->error) return;
  }
  put(
      [point = std::move(point)] {
        if (auto error = point.progress->wait_for(point.piece)) std::rethrow_exception(error);
      },
      TraceKind::wait);
}

void HostStream::synchronize() {
  std::uint64_t piece;
  {
    std::lock_guard lock(mutex_);
    piece = issued_;
  }
  if (auto error = progress_->wait_for(piece)) std::rethrow_exception(error);
}

void HostStream::run() {
  const SignalStack stack;
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
  bool failed = false;
  for (std::uint64_t piece = 1;; ++piece) {
    Piece next;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    std::exception_ptr error;
    const auto begin = TraceClock::now();
    try {
      if (!failed && next.caller) {
        run_inside(next.caller, next.work);
      } else if (!failed) {
        next.work();
      }
    } catch (...) {
      error = std::current_exception();
      failed = true;
    }
    const auto end = TraceClock::now();
    if (next.kind != TraceKind::wait) {
      const std::chrono::duration<double> taken = end - begin;
      busy_.store(busy_.load(std::memory_order_relaxed) + taken.count(), std::memory_order_relaxed);
    }
    next.work = nullptr;  // what it holds is freed before anybody is told that it is done
    if (next.launch) next.launch.ran(name_, next.kind, begin, end);
    finish(piece, std::move(error));
  }
}

void HostStream::finish(std::uint64_t piece, std::exception_ptr error) {
  {
    std::lock_guard lock(progress_->mutex);
    progress_->done = piece;
    if (error) {
      progress_->failed_at = piece;
      progress_->error = std::move(error);
    }
  }
  progress_->advanced.notify_all();
}

HostEvent::Point HostEvent::point() const {
  std::lock_guard lock(mutex_);
  return point_;
}

bool HostEvent::reached() const {
  const Point at = point();
  if (!at.progress) return true;
  std::lock_guard lock(at.progress->mutex);
  return at.progress->done >= at.piece;
}

std::optional<double> HostEvent::seconds_since(const Event& earlier) const {
  const auto& other = own<const HostEvent>(earlier, "an event");
  if (!when_ || !other.when_ || !reached() || !other.reached()) return std::nullopt;
  return static_cast<double>(*when_ - *other.when_) * 1e-9;
}

void HostEvent::synchronize() const {
  const Point at = point();
  if (at.progress) at.progress->wait_for(at.piece);
}

}  // namespace ananke
