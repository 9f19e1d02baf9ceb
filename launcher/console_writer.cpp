#include "launcher/console_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/printable.h"

namespace ananke {
namespace {

constexpr std::size_t limit = std::size_t{1} << 20;
// What a pipe that is ready takes without blocking (POSIX's PIPE_BUF is at least 512, Linux's is this).
constexpr std::size_t chunk = 4096;

}  // namespace

ConsoleWriter::ConsoleWriter(int descriptor) : descriptor_(descriptor) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ConsoleWriter::~ConsoleWriter() {
  const bool all = flush(std::chrono::seconds(1));
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    if (!all) log_warning("the console takes no more: its last {} bytes or more are lost", waiting_.size());
  }
  changed_.notify_all();
  thread_.join();
}

void ConsoleWriter::add(std::string_view given) {
  const std::string line = printable(given);  // of processes, files and events, which are called as anybody likes
  {
    std::lock_guard lock(mutex_);
    if (waiting_.size() + line.size() > limit) {
      ++dropped_;
      return;
    }
    waiting_.append(line).push_back('\n');
  }
  changed_.notify_all();
}

bool ConsoleWriter::flush(std::chrono::milliseconds deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, deadline, [&] { return waiting_.empty() && !writing_; });
}

// False when nobody will ever read.
bool ConsoleWriter::write_some(std::string& text) {
  pollfd ready{descriptor_, POLLOUT, 0};
  if (poll(&ready, 1, 100) <= 0) return true;
  const ssize_t written = write(descriptor_, text.data(), std::min(text.size(), chunk));
  if (written > 0) text.erase(0, static_cast<std::size_t>(written));
  return written > 0 || errno == EINTR || errno == EAGAIN;
}

void ConsoleWriter::run() {
  std::unique_lock lock(mutex_);
  bool readable = true;
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
    if (closing_ && waiting_.empty()) return;
    std::string text = std::exchange(waiting_, {});
    if (dropped_ > 0) text += fmt::format("[{} lines dropped: the console was too slow]\n", std::exchange(dropped_, 0));
    writing_ = true;
    while (readable && !text.empty() && !closing_) {
      lock.unlock();
      readable = write_some(text);
      lock.lock();
    }
    writing_ = false;
    changed_.notify_all();
    if (closing_) return;
  }
}

}  // namespace ananke
