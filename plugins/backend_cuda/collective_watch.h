// Looks after what is under way on communicators, from a thread of its own: nobody else notices when a peer is gone,
// since the host only puts collectives on streams and a kernel that waits for its peer waits for ever.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ananke::cuda {

using WatchClock = std::chrono::steady_clock;

class Watched {
 public:
  virtual ~Watched() = default;
  virtual void look(WatchClock::time_point now) noexcept = 0;  // on the watch's thread
};

class CollectiveWatch {
 public:
  explicit CollectiveWatch(std::chrono::milliseconds pause = std::chrono::milliseconds(50)) : pause_(pause) {}
  ~CollectiveWatch();
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;
  void add(Watched& watched);
  void remove(Watched& watched) noexcept;  // it is not being looked at any more when this returns

 private:
  void run();
  const std::chrono::milliseconds pause_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched*> all_;
  bool closing_ = false;
  std::thread thread_;
};

// When to give up waiting for the oldest piece of work of a communicator. Pieces come to their end in the order in
// which they were begun. Not thread-safe.
class Patience {
 public:
  struct Limits {
    std::chrono::milliseconds deadline;  // for one piece, from when the one before it was done
    std::chrono::milliseconds farewell;  // a peer that is gone may have done its part, ours is then done soon after
  };
  explicit Patience(Limits limits) : limits_(limits) {}
  // `done`: how many pieces are finished; `begun`: how many were put on a stream; `lost`: what has become of a peer, or
  // empty. Returns why to give up, or empty.
  enum class Verdict { wait, lost, stalled };
  Verdict judge(std::uint64_t done, std::uint64_t begun, bool lost, WatchClock::time_point now);

 private:
  const Limits limits_;
  std::uint64_t done_ = 0;
  bool idle_ = true, was_lost_ = false;
  WatchClock::time_point since_, lost_since_;
};

}  // namespace ananke::cuda
