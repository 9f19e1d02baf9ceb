#include "runtime/comm/rank_processes.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/scratch_folder.h"
#include "runtime/comm/folder_rendezvous.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

// Where the ranks meet, and where one that fails leaves its error.
class MeetingFolder {
 public:
  MeetingFolder() : folder_(parent(), "ananke-ranks", "ranks to meet") {}
  const fs::path& path() const { return folder_.path(); }
  fs::path error_of(int rank) const { return path() / ("error-of-rank." + std::to_string(rank)); }
  void remove() noexcept { folder_.remove(); }

 private:
  static fs::path parent() {
    std::error_code problem;
    fs::path folder = fs::temp_directory_path(problem);
    if (!problem) return folder;
    fail(ErrorKind::resource, "no folder for ranks to meet in: {}; set TMPDIR to a folder that is there",
         problem.message());
  }
  ScratchFolder folder_;
};

// Signals that ask this process to end wait while it lives: ranks and their folder shall not be left behind.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction now {};
      if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&held_, number);
    }
    pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() { release(); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  void release() const noexcept { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  // The number of one that has come, after so long at most; 0: none.
  int wait(std::chrono::milliseconds time) const noexcept {
    const timespec limit{0, static_cast<long>(std::chrono::nanoseconds(time).count())};
    return std::max(sigtimedwait(&held_, nullptr, &limit), 0);
  }

 private:
  sigset_t held_, before_;
};

[[noreturn]] void be_rank(int rank, int ranks, std::chrono::milliseconds deadline, const MeetingFolder& folder,
                          const HeldSignals& signals, const std::function<void(int, Rendezvous&)>& work) noexcept {
  signals.release();
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives who waits for it
  int code = 0;
  try {
    FolderRendezvous rendezvous(folder.path(), rank, ranks, deadline);
    work(rank, rendezvous);
  } catch (const Error& error) {
    code = static_cast<int>(error.kind());
    std::ofstream(folder.error_of(rank), std::ios::binary) << error.what();
  } catch (const std::exception& error) {
    code = static_cast<int>(ErrorKind::internal);
    std::ofstream(folder.error_of(rank), std::ios::binary) << error.what();
  }
  std::fflush(nullptr);
  _exit(code);  // destructors of what was there before the fork are the parent's
}

struct Ended {
  int rank = -1, status = 0;
};

void kill_all(std::vector<pid_t>& ranks) {
  for (pid_t& rank : ranks) {
    if (rank == 0) continue;
    ::kill(rank, SIGKILL);
    waitpid(rank, nullptr, 0);
    rank = 0;
  }
}

// What the signal would have done at once, had it not been held.
void end_by(int signal, std::vector<pid_t>& ranks, MeetingFolder& folder, const HeldSignals& signals) {
  kill_all(ranks);
  folder.remove();
  ::raise(signal);
  signals.release();
  fail(ErrorKind::worker_failed, "ended by {}, as all ranks are", ::strsignal(signal));  // whoever catches it goes on
}

Ended wait_for_one(std::vector<pid_t>& ranks, MeetingFolder& folder, const HeldSignals& signals) {
  while (true) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      int status = 0;
      if (ranks[i] == 0) continue;
      const pid_t ended = waitpid(ranks[i], &status, WNOHANG);
      if (ended < 0 && errno != EINTR) {
        const std::string why = std::strerror(errno);
        kill_all(ranks);
        fail(ErrorKind::internal, "cannot wait for the process of rank {}: {}", i, why);
      }
      if (ended != ranks[i]) continue;
      ranks[i] = 0;
      return {static_cast<int>(i), status};
    }
    if (const int signal = signals.wait(std::chrono::milliseconds(2))) end_by(signal, ranks, folder, signals);
  }
}

[[noreturn]] void throw_end_of(const Ended& ended, const MeetingFolder& folder) {
  if (WIFSIGNALED(ended.status)) {
    fail(ErrorKind::worker_failed, "rank {} was ended by signal {} ({})", ended.rank, WTERMSIG(ended.status),
         ::strsignal(WTERMSIG(ended.status)));
  }
  std::ifstream in(folder.error_of(ended.rank), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto kind = static_cast<ErrorKind>(WEXITSTATUS(ended.status));
  if (text.empty()) fail(ErrorKind::worker_failed, "rank {} ended with exit code {}", ended.rank, int(kind));
  fail(kind, "rank {}: {}", ended.rank, text);
}

}  // namespace

void run_rank_processes(int ranks, std::chrono::milliseconds deadline,
                        const std::function<void(int rank, Rendezvous& rendezvous)>& work) {
  const HeldSignals signals;  // first: a signal that was held ends this process when the folder is gone
  MeetingFolder folder;
  std::vector<pid_t> processes;
  std::signal(SIGCHLD, SIG_DFL);  // ignored, as some supervisors leave it, nobody could be waited for
  std::fflush(nullptr);           // or every rank prints it again
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = ::fork();
    if (process == 0) be_rank(rank, ranks, deadline, folder, signals, work);
    if (process < 0) {
      const std::string why = std::strerror(errno);
      kill_all(processes);
      fail(ErrorKind::resource, "cannot start rank {} of {} as a process: {}; use fewer ranks", rank, ranks, why);
    }
    processes.push_back(process);
  }
  for (int left = ranks; left > 0; --left) {
    const Ended ended = wait_for_one(processes, folder, signals);
    if (WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0) continue;
    kill_all(processes);
    throw_end_of(ended, folder);
  }
}

void SharedFloats::Unmap::operator()(float* data) const noexcept { ::munmap(data, bytes); }

std::unique_ptr<float, SharedFloats::Unmap> SharedFloats::map(std::size_t count) {
  const std::size_t bytes = std::max<std::size_t>(1, count) * sizeof(float);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    fail(ErrorKind::resource, "cannot share {} bytes of memory between ranks: {}", bytes, std::strerror(errno));
  }
  return {static_cast<float*>(data), Unmap{bytes}};
}

}  // namespace ananke
