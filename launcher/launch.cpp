#include "launcher/launch.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "launcher/last_words.h"
#include "launcher/local_workers.h"
#include "launcher/signal_file.h"
#include "launcher/standstill.h"
#include "launcher/workers.h"
#include "runtime/base/log.h"
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
constexpr milliseconds last_sign{100};     // likewise of one that was killed, and had no time to say more
constexpr std::size_t most_stack_lines = 60;
constexpr seconds join_linger{1};  // from the last join until what helped to come there may go

// What the loop knows of a rank, beside the control server's WorkerStatus.
struct Watched {
  std::filesystem::path log;
  std::uintmax_t log_begin = 0;  // earlier runs' part
  std::optional<Workers::News> end;
  bool judged = false;  // the end has been looked at
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

// What a crash handler has written; a sanitizer's report may stand behind it.
LastWordsRead last_words_in(const std::filesystem::path& path, std::uintmax_t begin) {
  constexpr std::uintmax_t window = 1 << 20;
  std::error_code none;
  const std::uintmax_t end = std::filesystem::file_size(path, none);
  std::ifstream file(path, std::ios::binary);
  if (none || !file.seekg(static_cast<std::streamoff>(std::max(begin, end > window ? end - window : 0)))) return {};
  LastWordsRead words;
  for (std::string line; std::getline(file, line);) words.read(line);
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

class Launch {
 public:
  Launch(const LaunchSpec& spec, Workers& workers);
  LaunchResult run();

 private:
  void start_workers();
  void wait_for_something(Clock::time_point until);
  Clock::time_point next_wake() const;
  void take_signals();
  void take_events();
  void take_event(const ControlEvent& event);
  void take_news();
  void judge_end(int rank);
  void judge_loss(int rank);
  void judge_teardown(int rank);
  void note_cause(int rank, Cause cause, Clock::time_point when);
  void complete(Cause& cause, int rank) const;
  void request_stop(const std::string& reason, const std::string& who);
  void end_all(ErrorKind kind, const std::string& message);
  void enforce();
  void ask_for_stacks();
  bool awaits_stacks(Clock::time_point now) const;
  std::string standstill_text(const Cause& cause) const;
  void kill_all();
  LaunchResult result();
  LaunchResult judge();
  LaunchResult result_of(const Cause& cause) const;
  std::string report_of(const Cause& cause) const;
  int running() const;
  Watched& watched(int rank) { return watched_[static_cast<std::size_t>(rank)]; }
  const Watched& watched(int rank) const { return watched_[static_cast<std::size_t>(rank)]; }
  std::string state_text(int rank) const;
  void say(const std::string& line) const {
    if (spec_.console) spec_.console(line);
  }

  const LaunchSpec& spec_;
  const std::string secret_ = make_secret();
  SignalFile signals_{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};  // before any thread is started
  IgnoredPipeSignal no_pipe_signal_;
  Workers& workers_;
  ControlServer server_;
  std::vector<Watched> watched_;
  FirstCause first_cause_;
  const Clock::time_point started_ = Clock::now();
  std::optional<Clock::time_point> all_joined_, all_finished_, kill_at_, killed_;
  std::optional<Clock::time_point> stacks_until_;  // asked for, to come until then
  bool stopping_ = false, ending_ = false, forced_ = false, lost_one_ = false;
  Clock::time_point stop_requested_{};
  int last_stop_signal_ = 0;
  std::optional<Cause> teardown_;  // of a rank whose work was done
  std::string lost_;               // why the run folder is no longer ours
};

Launch::Launch(const LaunchSpec& spec, Workers& workers)
    : spec_(spec),
      workers_(workers),
      server_({.size = spec.ranks, .secret = secret_, .host = workers.listen_address(), .deadlines = spec.deadlines}) {}

void Launch::start_workers() {
  if (access(spec_.program.c_str(), X_OK) != 0) {
    fail(ErrorKind::resource, "cannot execute the worker {}: {}", spec_.program, std::strerror(errno));
  }
  std::filesystem::create_directories(spec_.run_dir / "logs");
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    Watched one;
    one.log = log_of(spec_.run_dir, rank);
    std::error_code none;
    const auto size = std::filesystem::file_size(one.log, none);
    one.log_begin = none ? 0 : size;
    watched_.push_back(std::move(one));
  }
  Variables variables{{control_variable, fmt::format("{}:{}", workers_.control_host(), server_.port())},
                      {secret_variable, secret_}};
  variables.insert(variables.end(), spec_.environment.begin(), spec_.environment.end());
  workers_.start(variables);
}

int Launch::running() const {
  int count = 0;
  for (int rank = 0; rank < spec_.ranks; ++rank) count += workers_.is_running(rank) ? 1 : 0;
  return count;
}

Clock::time_point Launch::next_wake() const {
  auto next = server_.next_deadline();
  const auto consider = [&](std::optional<Clock::time_point> time) {
    if (time) next = std::min(next, *time);
  };
  if (!ending_ && awaits_stacks(Clock::now())) {
    consider(stacks_until_);
  } else if (!ending_) {
    consider(first_cause_.settled_at());
  }
  consider(kill_at_);
  if (killed_) consider(*killed_ + after_kill_deadline);
  if (std::ranges::any_of(watched_, [](const Watched& w) { return w.end && !w.judged; })) {
    consider(Clock::now() + milliseconds(10));
  }
  return next;
}

void Launch::wait_for_something(Clock::time_point until) {
  std::vector<pollfd> ready{{signals_.descriptor(), POLLIN, 0}, {server_.descriptor(), POLLIN, 0}};
  workers_.watch(ready);
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  poll(ready.data(), ready.size(), static_cast<int>(std::clamp<long>(left, 0, 1000)));
}

void Launch::request_stop(const std::string& reason, const std::string& who) {
  if (stopping_ || ending_) return;
  stopping_ = true;
  stop_requested_ = Clock::now();
  say(fmt::format("{} {}: stopping after a common step and a checkpoint; a second Ctrl-C ends the job at once", who,
                  reason));
  server_.stop(reason);
}

void Launch::take_signals() {
  for (int number; (number = signals_.take()) != 0;) {
    const std::string name = signal_name(number);
    const bool second_term = number == SIGTERM && last_stop_signal_ == SIGTERM && spec_.second_term_ends &&
                             Clock::now() - stop_requested_ > seconds(1);
    const bool again = stopping_ && (number == SIGINT || second_term);
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

void Launch::note_cause(int rank, Cause cause, Clock::time_point when) {
  if (ending_) return;
  complete(cause, rank);
  if (cause.what != Cause::What::disconnected) log_info("launcher: {}", describe(cause));
  first_cause_.add(std::move(cause), when);
}

void Launch::complete(Cause& cause, int rank) const {
  const WorkerStatus& status = server_.worker(rank);
  cause.rank = rank;
  cause.host = status.joined ? status.host : workers_.host(rank);
  cause.process = status.joined ? status.process : workers_.process(rank);
  if (cause.phase.empty()) {  // it has left no word on that itself
    cause.phase = status.phase;
    cause.step = status.step;
  }
  cause.log = watched(rank).log.string();
  // Of a death the last heartbeat says what came before, not what it died of.
  const bool stalled = cause.what == Cause::What::silent || cause.what == Cause::What::no_progress;
  if (stalled) {
    cause.activity = status.activity;
    cause.waits = status.waits;
    cause.item = status.phase == "step" || status.phase == "evaluation" ? status.item : "";
    cause.place = status.place;
  }
}

void Launch::take_event(const ControlEvent& event) {
  using Kind = ControlEvent::Kind;
  const auto now = Clock::now();
  switch (event.kind) {
    case Kind::console: say(event.text); break;
    case Kind::stop_requested: request_stop(event.text, fmt::format("rank {} received", event.rank)); break;
    case Kind::failure:
      note_cause(event.rank, {.what = Cause::What::reported, .kind = event.error, .message = event.text}, now);
      break;
    case Kind::silent:
      note_cause(
          event.rank,
          {.what = Cause::What::silent, .kind = ErrorKind::stalled, .message = event.text + state_text(event.rank)},
          now);
      break;
    case Kind::no_progress:
      note_cause(event.rank, {.what = Cause::What::no_progress, .kind = ErrorKind::stalled, .message = event.text},
                 now);
      ask_for_stacks();
      break;
    case Kind::not_joined:
      note_cause(event.rank,
                 {.what = Cause::What::not_joined,
                  .kind = ErrorKind::stalled,
                  .message = text_of(spec_.deadlines.join) + state_text(event.rank)},
                 now);
      break;
    case Kind::disconnected: note_cause(event.rank, {.what = Cause::What::disconnected}, now); break;
    case Kind::refused: log_warning("launcher: refused a connection: {}", event.text); break;
    case Kind::stacks:
    case Kind::joined:
    case Kind::finished: break;
  }
}

void Launch::take_events() {
  for (const ControlEvent& event : server_.process()) take_event(event);
}

void Launch::take_news() {
  for (Workers::News& news : workers_.take_news()) {
    if (news.kind == Workers::News::Kind::aborted) {
      note_cause(news.rank, {.what = Cause::What::aborted, .number = news.number, .message = news.message}, news.when);
    } else {
      watched(news.rank).end = std::move(news);
    }
  }
}

std::string Launch::state_text(int rank) const {
  const std::string state = workers_.state(rank);
  return state.empty() ? "" : "; its process is " + state;
}

// What a worker said before it ended must have been read first: its connection's end tells.
void Launch::judge_end(int rank) {
  Watched& worker = watched(rank);
  const WorkerStatus& status = server_.worker(rank);
  if (worker.judged || !worker.end) return;
  if (worker.end->kind == Workers::News::Kind::lost) return judge_loss(rank);
  const ExitStatus& exit = worker.end->status;
  const bool by_signal = exit.signal != 0;
  if (status.connected && Clock::now() - worker.end->when < (by_signal ? last_sign : last_words)) return;
  worker.judged = true;
  if (status.finished) return judge_teardown(rank);
  Cause cause{.what = by_signal ? Cause::What::killed : Cause::What::exited,
              .number = by_signal ? exit.signal : exit.code};
  if (worker.end->out_of_memory) {
    cause.message = "the kernel killed it for want of memory (oom_kill of its control group rose)";
  }
  if (exit.core_dumped) cause.message = "core dumped";
  const LastWordsRead words = last_words_in(worker.log, worker.log_begin);
  if (!words.call.empty()) cause.message = "inside " + words.call;
  cause.phase = words.phase;
  cause.step = words.step;
  note_cause(rank, std::move(cause), worker.end->when);
}

// All are lost together: the lowest rank that had not finished stands for them.
void Launch::judge_loss(int rank) {
  watched(rank).judged = true;
  if (server_.worker(rank).finished || lost_one_) return;
  lost_one_ = true;
  note_cause(rank, {.what = Cause::What::lost, .message = watched(rank).end->message}, watched(rank).end->when);
}

// The rank's work is done, so the others go on; but a process that ends badly is not passed over.
void Launch::judge_teardown(int rank) {
  const ExitStatus& exit = watched(rank).end->status;
  const int promised = server_.worker(rank).exit_code;
  if (ending_ || teardown_ || (exit.signal == 0 && exit.code == promised)) return;
  Cause cause{.what = Cause::What::teardown, .number = exit.signal};
  cause.message = exit.signal != 0 ? fmt::format("was killed by {}", signal_name(exit.signal))
                                   : fmt::format("exited with code {} instead of {}", exit.code, promised);
  complete(cause, rank);
  teardown_ = std::move(cause);
}

void Launch::end_all(ErrorKind kind, const std::string& message) {
  ending_ = true;
  kill_at_ = Clock::now() + spec_.grace;
  server_.end(kind, message);
  workers_.terminate();
}

void Launch::kill_all() {
  kill_at_.reset();
  if (!killed_) killed_ = Clock::now();
  workers_.kill();
}

// Of all ranks: who stands still may only wait for another.
void Launch::ask_for_stacks() {
  if (ending_ || stacks_until_ || spec_.deadlines.stalls.stacks <= milliseconds(0)) return;
  stacks_until_ = Clock::now() + spec_.deadlines.stalls.stacks;
  say(fmt::format("a rank makes no progress: asking all for their stacks; the job then ends"));
  server_.ask_for_stacks();
}

// Only for them is an end put off, and only where a standstill is all that is known.
bool Launch::awaits_stacks(Clock::time_point now) const {
  if (!stacks_until_ || now >= *stacks_until_ || !first_cause_.any()) return false;
  if (first_cause_.result().what != Cause::What::no_progress) return false;
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    const WorkerStatus& worker = server_.worker(rank);
    if (worker.connected && !worker.finished && worker.stacks.empty()) return true;
  }
  return false;
}

// What is due by now.
void Launch::enforce() {
  const auto now = Clock::now();
  for (int rank = 0; rank < spec_.ranks; ++rank) judge_end(rank);
  if (!ending_ && first_cause_.settled_at() && now >= *first_cause_.settled_at() && !awaits_stacks(now)) {
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
  if (server_.all_joined() && !all_joined_) {
    all_joined_ = now;
    log_info("launcher: all {} workers have joined, {} after they were started", spec_.ranks, text_of(now - started_));
  }
  if (all_joined_ && now - *all_joined_ > join_linger) workers_.all_joined();
}

LaunchResult Launch::run() {
  start_workers();
  while (running() > 0 || std::ranges::any_of(watched_, [](const Watched& w) { return w.end && !w.judged; })) {
    wait_for_something(next_wake());
    take_signals();
    take_news();
    take_events();
    enforce();
    if (killed_ && Clock::now() - *killed_ > after_kill_deadline) break;
  }
  return result();
}

LaunchResult Launch::result() {
  LaunchResult ended = judge();
  ended.by_keyboard = last_stop_signal_ == SIGINT;
  return ended;
}

LaunchResult Launch::judge() {
  // After a standstill of this process too, whose workers have meanwhile ended for another reason.
  if (lost_.empty() && spec_.lost) lost_ = spec_.lost();
  if (!lost_.empty()) return {static_cast<int>(ErrorKind::checkpoint), stopping_, false, {}, "job ended: " + lost_};
  if (forced_) return {static_cast<int>(ErrorKind::interrupted), true, false, {}, {}};
  if (first_cause_.any()) return result_of(first_cause_.result());
  if (teardown_) return result_of(*teardown_);
  int code = 0;
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    const int one = server_.worker(rank).exit_code;
    if (code == 0 || code == static_cast<int>(ErrorKind::interrupted)) code = one == 0 ? code : one;
  }
  return {code, stopping_, false, {}, {}};
}

LaunchResult Launch::result_of(const Cause& cause) const {
  return {static_cast<int>(cause.kind), stopping_, false, cause, report_of(cause)};
}

std::string Launch::report_of(const Cause& cause) const {
  std::string report = "job failed: " + describe(cause);
  const Watched& worker = watched(cause.rank);
  const std::vector<std::string> lines = last_lines(worker.log, worker.log_begin);
  report += lines.empty() ? fmt::format("\n  {} holds nothing of this run", worker.log.string())
                          : fmt::format("\n  last lines of {}:", worker.log.string());
  for (const std::string& line : lines) report += "\n    " + line;
  if (cause.kind == ErrorKind::stalled) report += standstill_text(cause);
  std::vector<int> alive;
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    if (workers_.is_running(rank)) alive.push_back(rank);
  }
  if (!alive.empty()) {
    report +=
        fmt::format("\n  {}: killed, but {}", format_ranks(alive),
                    workers_.state(alive.front()).empty() ? "nothing is heard of their end (is their node cut off?)"
                                                          : "still there (in uninterruptible sleep?)");
  }
  return report;
}

// Of several that wait for each other, one that is behind, or inside a plugin, is the more likely cause.
std::string Launch::standstill_text(const Cause& cause) const {
  std::vector<WorkerStatus> workers;
  for (int rank = 0; rank < spec_.ranks; ++rank) workers.push_back(server_.worker(rank));
  std::string text;
  const std::vector<std::string> others = where_ranks_are(workers, cause.rank);
  if (!others.empty()) text += "\n  where the others are:";
  for (const std::string& line : others) text += "\n    " + line;
  if (!stacks_until_) return text;
  const std::string& stacks = server_.worker(cause.rank).stacks;
  text += stacks.empty() ? fmt::format("\n  rank {} gave no stacks within {}{}", cause.rank,
                                       text_of(spec_.deadlines.stalls.stacks), state_text(cause.rank))
                         : fmt::format("\n  threads of rank {} (those of the others are in their logs):\n{}",
                                       cause.rank, indented(stacks, "    ", most_stack_lines));
  return text;
}

}  // namespace

LaunchResult launch(const LaunchSpec& spec, Workers& workers) {
  ANANKE_CHECK(spec.ranks >= 1 && !spec.arguments.empty(), "{} ranks, {} arguments", spec.ranks, spec.arguments.size());
  return Launch(spec, workers).run();
}

LaunchResult launch_local(const LaunchSpec& spec) {
  LocalWorkers workers(spec);
  return launch(spec, workers);
}

}  // namespace ananke
