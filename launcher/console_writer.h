// The job's one console: lines go to a file descriptor from a thread of its own, so that a reader who is slow or has
// stopped (Ctrl-S, a full pipe) holds up nobody.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace ananke {

class ConsoleWriter {
 public:
  explicit ConsoleWriter(int descriptor);  // not owned
  ~ConsoleWriter();                        // what cannot be written within a second is lost
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  // Never waits. Lines beyond 1 MiB waiting are dropped, and their number is written when there is room again.
  void add(std::string_view line);
  // Waits until all is written; false when `deadline` passed first.
  bool flush(std::chrono::milliseconds deadline);

 private:
  void run();
  bool write_some(std::string& text);

  const int descriptor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;  // whole lines
  std::uint64_t dropped_ = 0;
  bool writing_ = false, closing_ = false;
  std::thread thread_;
};

}  // namespace ananke
