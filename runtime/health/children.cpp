#include "runtime/health/children.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>

#include "runtime/base/error.h"

namespace ananke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using End = ChildOutcome::End;

constexpr std::size_t most_output = 4 << 20;
constexpr milliseconds after_kill{300};   // a process that does not end by then waits in the kernel
constexpr milliseconds after_pipe{5000};  // from the end of what it says to its own

class Child {
 public:
  Child(const ChildTask& task, ChildOutcome& outcome, Clock::time_point until)
      : outcome_(outcome), begin_(Clock::now()), until_(std::min(begin_ + task.deadline, until)) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      outcome_.output = fmt::format("pipe: {}", std::strerror(errno));
      return;
    }
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      work(task, ends[1]);
    }
    close(ends[1]);
    pipe_ = ends[0];
    if (pid_ > 0) return;
    outcome_.output = fmt::format("fork: {}", std::strerror(errno));
    close_pipe();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { close_pipe(); }

  bool runs() const { return pid_ > 0; }
  int pipe() const { return pipe_; }
  Clock::time_point until() const { return until_; }

  void read() {
    std::array<char, 65536> bytes;
    const ssize_t got = ::read(pipe_, bytes.data(), bytes.size());
    if (got > 0 && said_.size() < most_output) {
      said_.append(bytes.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || (got < 0 && errno != EINTR)) {
      reap(false);
    }
  }
  // Its time is over.
  void stop() {
    kill(pid_, SIGKILL);
    reap(true);
  }

 private:
  [[noreturn]] static void work(const ChildTask& task, int pipe) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGTERM, SIGINT}) signal(number, SIG_DFL);
    std::string text;
    try {
      text = "+" + task.work();
    } catch (const std::exception& error) {
      text = std::string("-") + error.what();
    } catch (...) {
      text = "-it threw something that is no std::exception";
    }
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t put = write(pipe, text.data() + at, text.size() - at);
      if (put <= 0 && errno != EINTR) break;
      at += static_cast<std::size_t>(std::max<ssize_t>(put, 0));
    }
    _exit(0);
  }

  // `by_us`: it was killed. Else its pipe is closed, so it is about to end.
  void reap(bool by_us) {
    int status = 0;
    pid_t got = 0;
    bool killed = by_us;
    for (auto limit = Clock::now() + (by_us ? after_kill : after_pipe); (got = waitpid(pid_, &status, WNOHANG)) == 0;) {
      if (Clock::now() > limit && killed) break;  // it waits in the kernel: it is left alone
      if (Clock::now() > limit) {
        kill(pid_, SIGKILL);
        killed = true;
        limit = Clock::now() + after_kill;
      }
      usleep(500);
    }
    outcome_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    pid_ = -1;
    close_pipe();
    judge(got > 0 && WIFSIGNALED(status) && !killed ? WTERMSIG(status) : 0, by_us);
  }

  void judge(int signal, bool by_us) {
    if (by_us) {
      outcome_.end = End::late;
    } else if (signal != 0) {
      outcome_.end = End::crashed;
      outcome_.output = fmt::format("it was ended by signal {} ({})", signal, strsignal(signal));
    } else if (said_.empty()) {
      outcome_.end = End::crashed;
      outcome_.output = "it ended without a word";
    } else {
      outcome_.end = said_[0] == '+' ? End::done : End::threw;
      outcome_.output = said_.substr(1);
    }
  }

  void close_pipe() {
    if (pipe_ >= 0) close(pipe_);
    pipe_ = -1;
  }

  ChildOutcome& outcome_;
  const Clock::time_point begin_, until_;
  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string said_;
};

}  // namespace

std::vector<ChildOutcome> run_children(const std::vector<ChildTask>& tasks, int parallel, Clock::time_point until) {
  std::vector<ChildOutcome> outcomes(tasks.size());
  std::vector<std::unique_ptr<Child>> running;
  std::size_t next = 0;
  while (next < tasks.size() || !running.empty()) {
    while (next < tasks.size() && running.size() < static_cast<std::size_t>(parallel) && Clock::now() < until) {
      running.push_back(std::make_unique<Child>(tasks[next], outcomes[next], until));
      ++next;
    }
    std::erase_if(running, [](const auto& child) { return !child->runs(); });
    if (running.empty()) {
      if (Clock::now() >= until) break;
      continue;
    }
    std::vector<pollfd> ready;
    Clock::time_point first = until;
    for (const auto& child : running) {
      ready.push_back({child->pipe(), POLLIN, 0});
      first = std::min(first, child->until());
    }
    const auto left = std::chrono::ceil<milliseconds>(first - Clock::now()).count();
    poll(ready.data(), ready.size(), static_cast<int>(std::clamp<long>(left, 0, 60'000)));
    for (std::size_t i = 0; i < running.size(); ++i) {
      if (ready[i].revents != 0) {
        running[i]->read();
      } else if (Clock::now() >= running[i]->until()) {
        running[i]->stop();
      }
    }
    std::erase_if(running, [](const auto& child) { return !child->runs(); });
  }
  return outcomes;
}

}  // namespace ananke
