#include "launcher/stacks.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "launcher/symbols.h"
#include "runtime/base/log.h"

namespace ananke {
namespace {

constexpr int most_frames = 64;
constexpr std::chrono::seconds patience{2};  // with one thread
constexpr std::chrono::seconds writing_patience{2};

// A signal handler has no other way to tell than by what is global. `turn` says whose turn it is: the number of the
// request, or that request's negative once the thread is writing; 0: nobody's.
struct Slot {
  std::atomic<int> turn{0};
  std::array<void*, most_frames> frames{};
  int count = 0;
  void* interrupted = nullptr;
};
Slot slot;
std::mutex one_at_a_time;
bool broken = false;  // under the mutex: a thread never came back from noting its stack, and may still write

int stack_signal() { return SIGRTMIN + 6; }

void* interrupted_at(void* context) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.pc);
#else
  return nullptr;
#endif
}

void on_stack_signal(int, siginfo_t* info, void* context) {
  const int error = errno;
  int mine = info->si_value.sival_int;
  if (mine > 0 && slot.turn.compare_exchange_strong(mine, -mine)) {
    slot.count = backtrace(slot.frames.data(), most_frames);
    slot.interrupted = interrupted_at(context);
    slot.turn = 0;
  }
  errno = error;
}

// While it lives, the signal is taken.
class Handler {
 public:
  Handler() {
    std::array<void*, 4> first{};
    backtrace(first.data(), static_cast<int>(first.size()));  // loads what unwinding needs, outside of any handler
    struct sigaction action {};
    action.sa_sigaction = on_stack_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(stack_signal(), &action, nullptr);
  }
  // The handler stays: a thread that was busy may still get the signal, whose default would end the process.
};

std::string line_of(const std::string& path, const std::string& begin) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(begin)) return line.substr(line.find_first_not_of(" \t", begin.size()));
  }
  return {};
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct ThreadStack {
  int id = 0;
  std::string name;
  std::string lines;  // a frame a line, or why there are none
};

bool blocks_signal(const std::string& folder) {
  const std::string mask = line_of(folder + "/status", "SigBlk:");
  return !mask.empty() && (std::strtoull(mask.c_str(), nullptr, 16) >> (stack_signal() - 1) & 1) != 0;
}

// False where the thread did not answer.
bool interrupt(int thread, int request) {
  using Clock = std::chrono::steady_clock;
  siginfo_t info{};
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_int = request;
  slot.turn = request;
  if (syscall(SYS_rt_tgsigqueueinfo, getpid(), thread, stack_signal(), &info) != 0) {
    slot.turn = 0;
    return false;
  }
  auto until = Clock::now() + patience;
  for (;;) {
    if (slot.turn == 0) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    const bool gone = syscall(SYS_tgkill, getpid(), thread, 0) != 0;
    if (!gone && Clock::now() < until) continue;
    int mine = request;
    if (slot.turn.compare_exchange_strong(mine, 0)) return false;
    if (mine == 0) return true;
    if (Clock::now() > until + writing_patience) {
      broken = true;
      return false;
    }
  }
}

// Frames of the handler itself left out.
std::string frames_text(Symbols& symbols) {
  const auto begin = slot.frames.begin(), end = begin + slot.count;
  auto first = slot.interrupted ? std::find(begin, end, slot.interrupted) : begin;
  if (first == end) first = begin;
  std::string text;
  for (auto frame = first; frame != end; ++frame) {
    // Behind the first, addresses are those after a call.
    const auto address = reinterpret_cast<std::uintptr_t>(*frame) - (frame == first ? 0 : 1);
    text += fmt::format("  #{} {}\n", frame - first, symbols.name(address));
  }
  if (slot.count == most_frames) text += "  ...\n";
  return text;
}

std::string kernel_text(const std::string& folder) {
  const std::string state = line_of(folder + "/status", "State:"), place = first_line(folder + "/wchan");
  return state + (place.empty() || place == "0" ? "" : ", in the kernel's " + place);
}

ThreadStack stack_of(int id, int request, Symbols& symbols) {
  const std::string folder = fmt::format("/proc/self/task/{}", id);
  ThreadStack thread{id, first_line(folder + "/comm"), {}};
  if (blocks_signal(folder)) {
    thread.lines = fmt::format("  blocks signals; {}\n", kernel_text(folder));
  } else if (!broken && interrupt(id, request)) {
    thread.lines = frames_text(symbols);
  } else {
    thread.lines = fmt::format("  does not answer; {}\n", kernel_text(folder));
  }
  return thread;
}

std::vector<int> threads_but_this() {
  std::vector<int> ids;
  std::error_code none;
  const int self = gettid();
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", none)) {
    const int id = std::atoi(entry.path().filename().c_str());
    if (id > 0 && id != self) ids.push_back(id);
  }
  std::ranges::sort(ids);
  return ids;
}

}  // namespace

std::string take_stacks(std::size_t most_bytes) {
  const std::lock_guard lock(one_at_a_time);
  static const Handler handler;
  static int request = 0;  // under the lock
  Symbols symbols;
  std::vector<std::pair<std::string, std::vector<ThreadStack>>> alike;  // by frames, in the order of threads
  for (const int id : threads_but_this()) {
    ThreadStack thread = stack_of(id, ++request, symbols);
    auto known = std::ranges::find(alike, thread.lines, &std::pair<std::string, std::vector<ThreadStack>>::first);
    if (known == alike.end()) known = alike.insert(alike.end(), {thread.lines, {}});
    known->second.push_back(std::move(thread));
  }
  std::string text;
  for (const auto& [lines, threads] : alike) {
    std::string head = threads.size() == 1 ? "thread" : fmt::format("{} threads", threads.size());
    for (const ThreadStack& thread : threads) head += fmt::format(" {} '{}'", thread.id, thread.name);
    text += head + "\n" + lines;
  }
  if (text.size() > most_bytes) text = text.substr(0, text.rfind('\n', most_bytes)) + "\n  ...\n";
  return text;
}

StackReporter::StackReporter(std::function<void(std::string)> deliver) : deliver_(std::move(deliver)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { serve(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StackReporter::~StackReporter() { stop(); }

void StackReporter::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StackReporter::request() noexcept {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = true;
  }
  changed_.notify_all();
}

void StackReporter::serve() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return wanted_ || closing_; });
      if (closing_) return;
      wanted_ = false;
    }
    try {
      std::string text = take_stacks();
      log_info("stacks of all threads:\n{}", text);
      flush_log();
      if (deliver_) deliver_(std::move(text));
    } catch (const std::exception& error) {
      log_warning("no stacks: {}", error.what());
    }
  }
}

}  // namespace ananke
