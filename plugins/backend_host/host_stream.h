// Streams of the host backend: one worker thread per stream, started by the first piece of work.
//
// Work runs in order. When a piece throws, the first exception is kept, what follows on the stream is skipped, events
// are still reached (nobody hangs), and a stream that waits for a point behind the failure fails with the same
// exception: nothing computes on values that never came. synchronize() of each failed stream throws it, every time.
// One host thread puts work on a stream; events may be looked at by any. While a step is traced every piece tells the
// trace when it ran.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/device/stream.h"
#include "runtime/plugin/plugin_call.h"
#include "runtime/telemetry/trace.h"

namespace ananke {

class HostStream final : public Stream {
 public:
  explicit HostStream(std::string name);  // at most 15 characters are shown by ps and debuggers
  ~HostStream() override;                 // runs what was put on it, then joins
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Work queued inside a plugin's call runs inside that call: its faults are that plugin's.
  void enqueue(std::function<void()> work) { put(std::move(work), TraceKind::launched); }
  void run_on_host(std::function<void()> work) override { enqueue(std::move(work)); }
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;
  // Spent on pieces that are finished, waits for other streams left out. Of any thread.
  double busy_seconds() const noexcept { return busy_.load(std::memory_order_relaxed); }

  // The stream of this backend that `stream` is; Error(internal) when it belongs to another backend.
  static HostStream& of(Stream& stream);

 private:
  friend class HostEvent;
  // How far a stream has come. Outlives the stream where events hold it.
  struct Progress {
    mutable std::mutex mutex;
    std::condition_variable advanced;
    std::uint64_t done = 0;       // pieces finished or skipped
    std::uint64_t failed_at = 0;  // the piece that threw, from 1; 0: none
    std::exception_ptr error;
    // Blocks until `piece` is done; its stream's error if that came at or before it.
    std::exception_ptr wait_for(std::uint64_t piece);
  };

  void put(std::function<void()> work, TraceKind kind);
  void run();
  void finish(std::uint64_t piece, std::exception_ptr error);

  const std::string name_;
  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::mutex mutex_;
  std::condition_variable arrived_;
  struct Piece {
    std::function<void()> work;
    PluginCallPtr caller;  // may be null
    TraceLaunch launch;    // empty: not traced
    TraceKind kind;
  };
  std::deque<Piece> queue_;
  std::uint64_t issued_ = 0;
  bool closing_ = false;
  std::atomic<double> busy_ = 0;  // written by the thread alone
  std::thread thread_;
};

class HostEvent final : public Event {
 public:
  // `timed`: keeps when it was reached.
  explicit HostEvent(bool timed = false) : when_(timed ? std::make_shared<std::atomic<std::int64_t>>(0) : nullptr) {}
  bool reached() const override;
  void synchronize() const override;
  std::optional<double> seconds_since(const Event& earlier) const override;

 private:
  friend class HostStream;
  struct Point {
    std::shared_ptr<HostStream::Progress> progress;  // null: never recorded
    std::uint64_t piece = 0;
  };
  Point point() const;
  mutable std::mutex mutex_;
  Point point_;
  const std::shared_ptr<std::atomic<std::int64_t>> when_;  // nanoseconds of a steady clock; null: not timed
};

}  // namespace ananke
