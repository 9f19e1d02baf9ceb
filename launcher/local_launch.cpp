#include "launcher/local_launch.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "launcher/last_words.h"
#include "launcher/oom_counter.h"
#include "launcher/pmix_server.h"
#include "launcher/signal_file.h"
#include "launcher/worker_process.h"
#include "runtime/base/log.h"
#include "runtime/base/process.h"
#include "runtime/base/units.h"
#include "runtime/comm/exchange_table.h"

namespace ananke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds leave_deadline{10};      // for a worker that has finished to end its process
constexpr seconds after_kill_deadline{5};  // for the kernel to end a killed process
constexpr milliseconds last_words{500};    // from a process's end to the end of its connection
constexpr seconds pmix_linger{1};          // from the last join until the PMIx server is given up

struct Worker {
  WorkerProcess process;
  std::filesystem::path log;
  std::uintmax_t log_begin = 0;  // earlier runs' part
  std::optional<ExitStatus> exit;
  Clock::time_point exited;
  bool judged = false;  // the exit has been looked at
};

std::string text_of(Clock::duration time) { return format_duration(std::chrono::duration<double>(time).count()); }

// The last lines this run has written to a log; the file may be large or still growing.
std::vector<std::string> last_lines(const std::filesystem::path& path, std::uintmax_t begin) {
  constexpr std::streamoff window = 8192;
  constexpr std::size_t limit = 12;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::streamoff end = file.tellg();
  const std::streamoff from = std::max<std::streamoff>(static_cast<std::streamoff>(begin), end - window);
  if (from >= end) return {};
  file.seekg(from);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  if (from > static_cast<std::streamoff>(begin) && lines.size() > 1) lines.erase(lines.begin());  // cut in the middle
  if (lines.size() > limit) lines.erase(lines.begin(), lines.end() - limit);
  return lines;
}

// What a crash handler has written of the plugin it was in; a sanitizer's report may stand behind it. Empty: nothing.
std::string last_words_in(const std::filesystem::path& path, std::uintmax_t begin) {
  constexpr std::uintmax_t window = 1 << 20;
  std::error_code none;
  const std::uintmax_t end = std::filesystem::file_size(path, none);
  std::ifstream file(path, std::ios::binary);
  if (none || !file.seekg(static_cast<std::streamoff>(std::max(begin, end > window ? end - window : 0)))) return {};
  std::string words;
  for (std::string line; std::getline(file, line);) {
    if (words.empty() && line.starts_with(last_words_mark)) words = line.substr(std::strlen(last_words_mark));
  }
  return words;
}

// Writing to a console that is gone must not end the launcher, and with it the job.
class IgnoredPipeSignal {
 public:
  IgnoredPipeSignal() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before_);
  }
  ~IgnoredPipeSignal() { sigaction(SIGPIPE, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

class LocalLaunch {
 public:
  explicit LocalLaunch(const LaunchSpec& spec);
  LaunchResult run();

 private:
  void start_workers();
  void wait_for_something(Clock::time_point until);
  Clock::time_point next_wake() const;
  void take_signals();
  void take_events();
  void take_event(const ControlEvent& event);
  void take_exits();
  void judge_exit(int rank);
  void judge_teardown(int rank);
  void note_cause(int rank, Cause cause, Clock::time_point when);
  void complete(Cause& cause, int rank) const;
  void request_stop(const std::string& reason, const std::string& who);
  void end_all(ErrorKind kind, const std::string& message);
  void enforce();
  void kill_all();
  LaunchResult result();
  LaunchResult result_of(const Cause& cause) const;
  std::string report_of(const Cause& cause) const;
  int running() const;
  void say(const std::string& line) const {
    if (spec_.console) spec_.console(line);
  }

  const LaunchSpec& spec_;
  const std::string secret_ = make_secret();
  SignalFile signals_{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};  // before any thread is started
  IgnoredPipeSignal no_pipe_signal_;
  ControlServer server_;
  std::optional<PmixServer> pmix_;
  std::vector<Worker> workers_;
  FirstCause first_cause_;
  const std::optional<std::uint64_t> oom_before_ = count_oom_kills();
  std::optional<Clock::time_point> all_joined_, all_finished_, kill_at_, killed_;
  bool stopping_ = false, ending_ = false, forced_ = false;
  Clock::time_point stop_requested_{};
  int last_stop_signal_ = 0;
  std::optional<Cause> teardown_;  // of a rank whose work was done
  std::string lost_;               // why the run folder is no longer ours
};

LocalLaunch::LocalLaunch(const LaunchSpec& spec)
    : spec_(spec), server_({.size = spec.ranks, .secret = secret_, .host = "127.0.0.1", .deadlines = spec.deadlines}) {}

void LocalLaunch::start_workers() {
  if (access(spec_.program.c_str(), X_OK) != 0) {
    fail(ErrorKind::resource, "cannot execute the worker {}: {}", spec_.program, std::strerror(errno));
  }
  std::filesystem::create_directories(spec_.run_dir / "logs");
  pmix_.emplace(spec_.ranks);
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    ProcessSpec process{spec_.program, spec_.arguments, pmix_->environment(rank),
                        spec_.run_dir / "logs" / fmt::format("rank-{}.log", rank)};
    const auto set = [&](const std::string& name, const std::string& value) {
      std::erase_if(process.environment, [&](const std::string& one) { return one.starts_with(name + "="); });
      process.environment.push_back(name + "=" + value);
    };
    set(control_variable, fmt::format("127.0.0.1:{}", server_.port()));
    set(secret_variable, secret_);
    for (const auto& [name, value] : spec_.environment) set(name, value);
    std::error_code none;
    const auto log_size = std::filesystem::file_size(process.log, none);
    workers_.push_back({WorkerProcess(process), process.log, none ? 0 : log_size, {}, {}, false});
  }
}

int LocalLaunch::running() const {
  return static_cast<int>(std::ranges::count_if(workers_, [](const Worker& w) { return w.process.running(); }));
}

Clock::time_point LocalLaunch::next_wake() const {
  auto next = server_.next_deadline();
  const auto consider = [&](std::optional<Clock::time_point> time) {
    if (time) next = std::min(next, *time);
  };
  if (!ending_) consider(first_cause_.settled_at());
  consider(kill_at_);
  if (killed_) consider(*killed_ + after_kill_deadline);
  if (std::ranges::any_of(workers_, [](const Worker& w) { return w.exit && !w.judged; })) {
    consider(Clock::now() + milliseconds(10));
  }
  return next;
}

void LocalLaunch::wait_for_something(Clock::time_point until) {
  std::vector<pollfd> ready{{signals_.descriptor(), POLLIN, 0}, {server_.descriptor(), POLLIN, 0}};
  if (pmix_) ready.push_back({pmix_->descriptor(), POLLIN, 0});
  for (const Worker& worker : workers_) {
    if (worker.process.running()) ready.push_back({worker.process.descriptor(), POLLIN, 0});
  }
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  poll(ready.data(), ready.size(), static_cast<int>(std::clamp<long>(left, 0, 1000)));
}

void LocalLaunch::request_stop(const std::string& reason, const std::string& who) {
  if (stopping_ || ending_) return;
  stopping_ = true;
  stop_requested_ = Clock::now();
  say(fmt::format("{} {}: stopping after a common step and a checkpoint; a second Ctrl-C ends the job at once", who,
                  reason));
  server_.stop(reason);
}

void LocalLaunch::take_signals() {
  for (int number; (number = signals_.take()) != 0;) {
    const std::string name = signal_name(number);
    const bool again = stopping_ && (number == SIGINT || (number == SIGTERM && last_stop_signal_ == SIGTERM &&
                                                          Clock::now() - stop_requested_ > seconds(1)));
    if (again && !forced_) {
      forced_ = true;
      say(fmt::format("second {}: ending all ranks now; work since the last checkpoint is lost", name));
      ending_ = true;
      kill_all();
    }
    if (number == SIGINT || number == SIGTERM) last_stop_signal_ = number;
    request_stop(name, "received");
  }
}

void LocalLaunch::note_cause(int rank, Cause cause, Clock::time_point when) {
  if (ending_) return;
  complete(cause, rank);
  if (cause.what != Cause::What::disconnected) log_info("launcher: {}", describe(cause));
  first_cause_.add(std::move(cause), when);
}

void LocalLaunch::complete(Cause& cause, int rank) const {
  const WorkerStatus& status = server_.worker(rank);
  const Worker& worker = workers_[static_cast<std::size_t>(rank)];
  cause.rank = rank;
  cause.host = status.joined ? status.host : host_name();
  cause.process = worker.process.pid();
  cause.phase = status.phase;
  cause.step = status.step;
  cause.log = worker.log.string();
  // Of a death the last heartbeat says what came before, not what it died of.
  const bool stalled = cause.what == Cause::What::silent || cause.what == Cause::What::no_progress;
  if (stalled) {
    cause.activity = status.activity;
    cause.waits = status.waits;
  }
}

void LocalLaunch::take_event(const ControlEvent& event) {
  using Kind = ControlEvent::Kind;
  const auto now = Clock::now();
  switch (event.kind) {
    case Kind::console: say(event.text); break;
    case Kind::stop_requested: request_stop(event.text, fmt::format("rank {} received", event.rank)); break;
    case Kind::failure:
      note_cause(event.rank, {.what = Cause::What::reported, .kind = event.error, .message = event.text}, now);
      break;
    case Kind::silent:
      note_cause(event.rank,
                 {.what = Cause::What::silent,
                  .kind = ErrorKind::stalled,
                  .message = fmt::format("{}; its process is {}", event.text,
                                         workers_[static_cast<std::size_t>(event.rank)].process.state())},
                 now);
      break;
    case Kind::no_progress:
      note_cause(event.rank, {.what = Cause::What::no_progress, .kind = ErrorKind::stalled, .message = event.text},
                 now);
      break;
    case Kind::not_joined:
      note_cause(event.rank,
                 {.what = Cause::What::not_joined,
                  .kind = ErrorKind::stalled,
                  .message = fmt::format("{}; its process is {}", text_of(spec_.deadlines.join),
                                         workers_[static_cast<std::size_t>(event.rank)].process.state())},
                 now);
      break;
    case Kind::disconnected: note_cause(event.rank, {.what = Cause::What::disconnected}, now); break;
    case Kind::refused: log_warning("launcher: refused a connection: {}", event.text); break;
    case Kind::joined:
    case Kind::finished: break;
  }
}

void LocalLaunch::take_events() {
  for (const ControlEvent& event : server_.process()) take_event(event);
  if (pmix_) {
    while (auto abort = pmix_->take_abort()) {
      if (abort->rank < 0 || abort->rank >= spec_.ranks) continue;
      note_cause(abort->rank, {.what = Cause::What::aborted, .number = abort->status, .message = abort->message},
                 Clock::now());
    }
  }
}

void LocalLaunch::take_exits() {
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    Worker& worker = workers_[static_cast<std::size_t>(rank)];
    if (!worker.exit && (worker.exit = worker.process.reap())) worker.exited = Clock::now();
  }
}

// What a worker said before it ended must have been read first: its connection's end tells.
void LocalLaunch::judge_exit(int rank) {
  Worker& worker = workers_[static_cast<std::size_t>(rank)];
  const WorkerStatus& status = server_.worker(rank);
  if (worker.judged || !worker.exit) return;
  const bool by_signal = worker.exit->signal != 0;
  if (!by_signal && status.connected && Clock::now() - worker.exited < last_words) return;
  worker.judged = true;
  if (status.finished) return judge_teardown(rank);
  Cause cause{.what = by_signal ? Cause::What::killed : Cause::What::exited,
              .number = by_signal ? worker.exit->signal : worker.exit->code};
  if (by_signal && worker.exit->signal == SIGKILL) {
    const auto oom_now = count_oom_kills();
    if (oom_before_ && oom_now && *oom_now > *oom_before_) {
      cause.message = "the kernel killed it for want of memory (oom_kill of its control group rose)";
    }
  }
  if (worker.exit->core_dumped) cause.message = "core dumped";
  if (const std::string words = last_words_in(worker.log, worker.log_begin); !words.empty()) {
    cause.message = "inside " + words;
  }
  note_cause(rank, std::move(cause), worker.exited);
}

// The rank's work is done, so the others go on; but a process that ends badly is not passed over.
void LocalLaunch::judge_teardown(int rank) {
  const ExitStatus& exit = *workers_[static_cast<std::size_t>(rank)].exit;
  const int promised = server_.worker(rank).exit_code;
  if (ending_ || teardown_ || (exit.signal == 0 && exit.code == promised)) return;
  Cause cause{.what = Cause::What::teardown, .number = exit.signal};
  cause.message = exit.signal != 0 ? fmt::format("was killed by {}", signal_name(exit.signal))
                                   : fmt::format("exited with code {} instead of {}", exit.code, promised);
  complete(cause, rank);
  teardown_ = std::move(cause);
}

void LocalLaunch::end_all(ErrorKind kind, const std::string& message) {
  ending_ = true;
  kill_at_ = Clock::now() + spec_.grace;
  server_.end(kind, message);
  for (const Worker& worker : workers_) worker.process.signal(SIGTERM);
}

void LocalLaunch::kill_all() {
  kill_at_.reset();
  if (!killed_) killed_ = Clock::now();
  for (const Worker& worker : workers_) worker.process.signal(SIGKILL);
}

// What is due by now.
void LocalLaunch::enforce() {
  const auto now = Clock::now();
  for (int rank = 0; rank < spec_.ranks; ++rank) judge_exit(rank);
  if (!ending_ && first_cause_.settled_at() && now >= *first_cause_.settled_at()) {
    const Cause& cause = first_cause_.result();
    end_all(cause.kind, fmt::format("the job has failed: {}", describe(cause)));
  }
  if (kill_at_ && now >= *kill_at_) kill_all();
  if (!ending_ && spec_.lost && !(lost_ = spec_.lost()).empty()) end_all(ErrorKind::checkpoint, lost_);
  bool finished = true;
  for (int rank = 0; rank < spec_.ranks; ++rank) finished = finished && server_.worker(rank).finished;
  if (finished && !all_finished_) all_finished_ = now;
  if (finished && !ending_ && now - *all_finished_ > leave_deadline) {
    say(fmt::format("all ranks have finished, but {} of their processes do not end; killing them", running()));
    ending_ = true;
    kill_all();
  }
  if (server_.all_joined() && !all_joined_) all_joined_ = now;
  // Workers that have joined are done with PMIx; without it a killed launcher leaves no files.
  if (pmix_ && all_joined_ && now - *all_joined_ > pmix_linger) pmix_.reset();
}

LaunchResult LocalLaunch::run() {
  start_workers();
  while (running() > 0 || std::ranges::any_of(workers_, [](const Worker& w) { return w.exit && !w.judged; })) {
    wait_for_something(next_wake());
    take_signals();
    take_exits();
    take_events();
    enforce();
    if (killed_ && Clock::now() - *killed_ > after_kill_deadline) break;
  }
  return result();
}

LaunchResult LocalLaunch::result() {
  // After a standstill of this process too, whose workers have meanwhile ended for another reason.
  if (lost_.empty() && spec_.lost) lost_ = spec_.lost();
  if (!lost_.empty()) return {static_cast<int>(ErrorKind::checkpoint), stopping_, {}, "job ended: " + lost_};
  if (forced_) return {static_cast<int>(ErrorKind::interrupted), true, {}, {}};
  if (first_cause_.any()) return result_of(first_cause_.result());
  if (teardown_) return result_of(*teardown_);
  int code = 0;
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    const int one = server_.worker(rank).exit_code;
    if (code == 0 || code == static_cast<int>(ErrorKind::interrupted)) code = one == 0 ? code : one;
  }
  return {code, stopping_, {}, {}};
}

LaunchResult LocalLaunch::result_of(const Cause& cause) const {
  return {static_cast<int>(cause.kind), stopping_, cause, report_of(cause)};
}

std::string LocalLaunch::report_of(const Cause& cause) const {
  std::string report = "job failed: " + describe(cause);
  const Worker& worker = workers_[static_cast<std::size_t>(cause.rank)];
  const std::vector<std::string> lines = last_lines(worker.log, worker.log_begin);
  report += lines.empty() ? fmt::format("\n  {} holds nothing of this run", worker.log.string())
                          : fmt::format("\n  last lines of {}:", worker.log.string());
  for (const std::string& line : lines) report += "\n    " + line;
  // Of several that wait for each other, one that is inside a plugin is the more likely cause.
  for (int rank = 0; rank < spec_.ranks && cause.kind == ErrorKind::stalled; ++rank) {
    const WorkerStatus& status = server_.worker(rank);
    if (rank == cause.rank || status.activity.empty()) continue;
    report += fmt::format("\n  rank {} was {} {}", rank, status.waits ? "waiting in" : "inside", status.activity);
  }
  std::vector<int> alive;
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    if (workers_[static_cast<std::size_t>(rank)].process.running()) alive.push_back(rank);
  }
  if (!alive.empty()) {
    report += fmt::format("\n  {}: killed, but still there (in uninterruptible sleep?)", format_ranks(alive));
  }
  return report;
}

}  // namespace

LaunchResult launch_local(const LaunchSpec& spec) {
  ANANKE_CHECK(spec.ranks >= 1 && !spec.arguments.empty(), "{} ranks, {} arguments", spec.ranks, spec.arguments.size());
  return LocalLaunch(spec).run();
}

}  // namespace ananke
