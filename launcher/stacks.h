// What this process's threads are doing, found out by themselves: each is interrupted for a moment and notes its own
// stack. No debugger and no right to trace is needed.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace ananke {

// One line per frame, innermost first; threads with the same stack stand together. A thread that does not answer within
// a moment, since it blocks signals or the kernel does not let it go, is listed with its state. At most `most_bytes`.
// One call at a time; others wait.
std::string take_stacks(std::size_t most_bytes = std::size_t{48} << 10);

// Takes stacks on a thread of its own when it is asked to, writes them to the log, and hands them on. Once per process
// at a time.
class StackReporter {
 public:
  explicit StackReporter(std::function<void(std::string)> deliver);  // called on the reporter's thread
  ~StackReporter();
  StackReporter(const StackReporter&) = delete;
  StackReporter& operator=(const StackReporter&) = delete;
  void request() noexcept;  // any thread; returns at once
  // Nothing is delivered any more; a request is forgotten. Waits for one under way.
  void stop() noexcept;
  // Stops it when it ends: declared behind what `deliver` uses and before what may still ask.
  class Stop {
   public:
    explicit Stop(StackReporter& reporter) : reporter_(reporter) {}
    ~Stop() { reporter_.stop(); }
    Stop(const Stop&) = delete;
    Stop& operator=(const Stop&) = delete;

   private:
    StackReporter& reporter_;
  };

 private:
  void serve();

  const std::function<void(std::string)> deliver_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ = false, closing_ = false;
  std::thread thread_;
};

}  // namespace ananke
