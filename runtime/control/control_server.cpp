#include "runtime/control/control_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>

#include "ananke/control.pb.h"
#include "runtime/base/units.h"
#include "runtime/comm/exchange_table.h"
#include "runtime/control/frame.h"
#include "runtime/control/socket.h"

namespace ananke {
namespace {

using Clock = ControlServer::Clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int nobody = -1;
constexpr seconds hello_deadline{10};
constexpr int few_heartbeats = 6;

struct Connection {
  Descriptor socket;
  FrameReader reader;
  std::string out;  // not yet taken by the kernel
  Clock::time_point since;
  int rank = nobody;     // until its Hello
  bool hang_up = false;  // once `out` is empty
};

struct Watch {
  Clock::time_point heard;
  Progress progress;
  bool reported_silent = false, reported_no_progress = false;
  int connection = -1;
};

std::string seconds_text(Clock::duration time) { return format_duration(std::chrono::duration<double>(time).count()); }

}  // namespace

class ControlServer::Impl {
 public:
  Impl(ControlServerOptions options, Clock::time_point now);

  std::vector<ControlEvent> process(Clock::time_point now);
  void stop(const std::string& reason);
  void end(ErrorKind kind, const std::string& message);
  void ask_for_stacks();
  Clock::time_point next_deadline() const;

  ControlServerOptions options;
  Descriptor listener, poller;
  std::vector<WorkerStatus> workers;
  int joined = 0;

 private:
  void accept_all(Clock::time_point now);
  void read_from(Connection& connection, Clock::time_point now);
  void flush(Connection& connection);
  void send(Connection& connection, const ControlMessage& message);
  void drop(int fd);
  void handle(Connection& connection, ControlMessage& message, Clock::time_point now);
  void greet(Connection& connection, const Hello& hello, Clock::time_point now);
  void refuse(Connection& connection, const std::string& why);
  void note(int rank, const Heartbeat& heartbeat, Clock::time_point now);
  milliseconds heartbeat_interval() const {
    return std::clamp<milliseconds>(options.deadlines.heartbeat / few_heartbeats, milliseconds(20), seconds(1));
  }
  std::string standstill(int rank, Clock::time_point now) const;
  void send_to_all(const ControlMessage& message);
  void answer(std::vector<ExchangeTable::Outcome> outcomes);
  void check_deadlines(Clock::time_point now);
  void forgive_own_absence(Clock::time_point now);
  void add(ControlEvent::Kind kind, int rank, std::string text = {}, ErrorKind error = ErrorKind::internal) {
    events_.push_back({kind, rank, std::move(text), error});
  }

  std::map<int, Connection> connections_;  // by descriptor
  std::vector<Watch> watches_;
  ExchangeTable exchanges_;
  StallWatch stalls_;
  std::vector<ControlEvent> events_;
  const Clock::time_point started_;
  Clock::time_point last_process_;
  bool reported_not_joined_ = false;
  std::string stop_reason_;
};

ControlServer::Impl::Impl(ControlServerOptions given, Clock::time_point now)
    : options(std::move(given)),
      listener(listen_on(options.host)),
      poller(epoll_create1(EPOLL_CLOEXEC)),
      workers(static_cast<std::size_t>(options.size)),
      watches_(static_cast<std::size_t>(options.size)),
      exchanges_(options.size, options.deadlines.exchange),
      stalls_(options.deadlines.stalls),
      started_(now),
      last_process_(now) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = listener.get()}};
  if (!poller || epoll_ctl(poller.get(), EPOLL_CTL_ADD, listener.get(), &event) != 0) {
    fail(ErrorKind::resource, "cannot watch the control channel: epoll: {}", std::strerror(errno));
  }
}

void ControlServer::Impl::accept_all(Clock::time_point now) {
  for (;;) {
    Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE) {
        add(ControlEvent::Kind::refused, nobody,
            fmt::format("a connection was not accepted: {}; raise the limit of open files (ulimit -n) above {}",
                        std::strerror(errno), 2 * options.size));
      }
      return;
    }
    const int fd = socket.get();
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (epoll_ctl(poller.get(), EPOLL_CTL_ADD, fd, &event) != 0) continue;
    Connection& connection = connections_[fd];
    connection.socket = std::move(socket);
    connection.since = now;
  }
}

void ControlServer::Impl::flush(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent =
        ::send(connection.socket.get(), connection.out.data(), connection.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      if (errno != EAGAIN) connection.out.clear();  // the reading side sees the end
      break;
    }
    connection.out.erase(0, static_cast<std::size_t>(sent));
  }
  epoll_event event{.events = connection.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT,
                    .data = {.fd = connection.socket.get()}};
  epoll_ctl(poller.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
}

void ControlServer::Impl::send(Connection& connection, const ControlMessage& message) {
  const bool idle = connection.out.empty();
  connection.out += encode_frame(message);
  if (idle) flush(connection);
}

void ControlServer::Impl::drop(int fd) {
  auto found = connections_.find(fd);
  if (found == connections_.end()) return;
  const int rank = found->second.rank;
  connections_.erase(found);
  if (rank == nobody) return;
  WorkerStatus& worker = workers[static_cast<std::size_t>(rank)];
  worker.connected = false;
  watches_[static_cast<std::size_t>(rank)].connection = -1;
  if (!worker.finished) add(ControlEvent::Kind::disconnected, rank);
}

void ControlServer::Impl::read_from(Connection& connection, Clock::time_point now) {
  const int fd = connection.socket.get();
  std::array<char, 65536> bytes;
  bool ended = false;
  // A bounded number of rounds, so that one talkative worker does not keep the others waiting.
  for (int round = 0; round < 16 && !ended; ++round) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      ended = true;
      break;
    }
    try {
      connection.reader.add({bytes.data(), static_cast<std::size_t>(got)});
      ControlMessage message;
      while (!connection.hang_up &&
             connection.reader.next(message, connection.rank == nobody ? max_hello_bytes : max_frame_bytes)) {
        handle(connection, message, now);
      }
    } catch (const Error& error) {
      refuse(connection, error.what());
    }
    if (connection.hang_up) break;
  }
  if (ended || (connection.hang_up && connection.out.empty())) drop(fd);
}

void ControlServer::Impl::refuse(Connection& connection, const std::string& why) {
  add(ControlEvent::Kind::refused, connection.rank, why);
  ControlMessage message;
  message.mutable_failure()->set_kind(static_cast<unsigned>(ErrorKind::usage));
  message.mutable_failure()->set_message(fmt::format("the launcher refuses this worker: {}", why));
  connection.hang_up = true;
  send(connection, message);
}

void ControlServer::Impl::greet(Connection& connection, const Hello& hello, Clock::time_point now) {
  const std::string who = fmt::format("process {} on {}", hello.process(), hello.host());
  if (!same_secret(hello.secret(), options.secret)) {
    return refuse(connection, who + " has another secret than this job");
  }
  if (hello.rank() >= static_cast<unsigned>(options.size)) {
    return refuse(connection, fmt::format("{} says it is rank {} of {} workers", who, hello.rank(), options.size));
  }
  WorkerStatus& worker = workers[hello.rank()];
  if (worker.joined) {
    return refuse(connection, fmt::format("{} says it is rank {}, which process {} on {} has joined as", who,
                                          hello.rank(), worker.process, worker.host));
  }
  connection.rank = static_cast<int>(hello.rank());
  worker.joined = worker.connected = true;
  worker.host = hello.host();
  worker.process = static_cast<int>(hello.process());
  ++joined;
  watches_[hello.rank()] = {.heard = now, .progress = {now, now}, .connection = connection.socket.get()};
  ControlMessage message;
  message.mutable_welcome()->set_size(static_cast<unsigned>(options.size));
  message.mutable_welcome()->set_heartbeat_ms(static_cast<std::uint64_t>(heartbeat_interval().count()));
  send(connection, message);
  if (!stop_reason_.empty()) {
    message.mutable_stop()->set_reason(stop_reason_);
    send(connection, message);
  }
  add(ControlEvent::Kind::joined, connection.rank, hello.host());
}

void ControlServer::Impl::handle(Connection& connection, ControlMessage& message, Clock::time_point now) {
  if (connection.rank == nobody) {
    if (!message.has_hello()) return refuse(connection, "the first message is no Hello");
    return greet(connection, message.hello(), now);
  }
  const int rank = connection.rank;
  WorkerStatus& worker = workers[static_cast<std::size_t>(rank)];
  Watch& watch = watches_[static_cast<std::size_t>(rank)];
  watch.heard = now;
  watch.reported_silent = false;
  switch (message.body_case()) {
    case ControlMessage::kHeartbeat: note(rank, message.heartbeat(), now); break;
    case ControlMessage::kExchange: {
      Exchange& exchange = *message.mutable_exchange();
      const std::vector<int> members(exchange.members().begin(), exchange.members().end());
      std::optional<ExchangeTable::Deadline> deadline;
      if (exchange.after_work()) deadline = {options.deadlines.step, "deadlines.step"};
      answer(exchanges_.arrive({rank, exchange.request()}, exchange.key(), members, std::move(*exchange.mutable_blob()),
                               now, deadline));
      break;
    }
    case ControlMessage::kStop: add(ControlEvent::Kind::stop_requested, rank, message.stop().reason()); break;
    case ControlMessage::kConsole: add(ControlEvent::Kind::console, rank, message.console().line()); break;
    case ControlMessage::kFailure:
      if (message.failure().has_phase()) worker.phase = message.failure().phase();
      if (message.failure().has_step()) worker.step = message.failure().step();
      add(ControlEvent::Kind::failure, rank, message.failure().message(),
          static_cast<ErrorKind>(message.failure().kind()));
      break;
    case ControlMessage::kStacks:
      worker.stacks = message.stacks().text();
      add(ControlEvent::Kind::stacks, rank);
      break;
    case ControlMessage::kFinished:
      worker.finished = true;
      worker.exit_code = static_cast<int>(message.finished().exit_code());
      add(ControlEvent::Kind::finished, rank);
      break;
    default: refuse(connection, fmt::format("rank {} sent a message that workers do not send", rank)); break;
  }
}

void ControlServer::Impl::note(int rank, const Heartbeat& heartbeat, Clock::time_point now) {
  WorkerStatus& worker = workers[static_cast<std::size_t>(rank)];
  Watch& watch = watches_[static_cast<std::size_t>(rank)];
  worker.activity = heartbeat.activity();
  worker.waits = heartbeat.waits();
  worker.item = heartbeat.item();
  worker.place = heartbeat.place();
  const bool another_step = worker.phase != heartbeat.phase() || worker.step != heartbeat.step();
  watch.progress.note(another_step, heartbeat.moved(), now);
  worker.phase = heartbeat.phase();
  worker.step = heartbeat.step();
  if (rank == 0) stalls_.heard(worker.phase, worker.step, now);
}

// For how long a rank stands still, where that is too long; else empty.
std::string ControlServer::Impl::standstill(int rank, Clock::time_point now) const {
  const WorkerStatus& worker = workers[static_cast<std::size_t>(rank)];
  const Progress& progress = watches_[static_cast<std::size_t>(rank)].progress;
  if (now - progress.progressed > options.deadlines.step) return seconds_text(now - progress.progressed);
  const auto limit = stalls_.limit(worker.phase);
  // Of items only heartbeats tell, of which a few may be late.
  if (!limit || now - progress.moved <= std::max<Clock::duration>(*limit, few_heartbeats * heartbeat_interval())) {
    return {};
  }
  return fmt::format("{} ({} {} usually takes {} here)", seconds_text(now - progress.moved),
                     worker.phase == "evaluation" ? "an" : "a", worker.phase,
                     seconds_text(*stalls_.usual(worker.phase)));
}

void ControlServer::Impl::answer(std::vector<ExchangeTable::Outcome> outcomes) {
  for (ExchangeTable::Outcome& outcome : outcomes) {
    ControlMessage message;
    Exchange& exchange = *message.mutable_exchange();
    for (std::string& blob : outcome.blobs) exchange.add_blobs(std::move(blob));
    if (!outcome.error.empty()) {
      exchange.set_error(outcome.error);
      exchange.set_error_kind(static_cast<unsigned>(outcome.kind));
    }
    for (const auto& ticket : outcome.waiting) {
      exchange.set_request(ticket.request);
      auto found = connections_.find(watches_[static_cast<std::size_t>(ticket.rank)].connection);
      if (found != connections_.end()) send(found->second, message);
    }
  }
}

// A launcher that was suspended (Ctrl-Z, a paused machine) has not listened: that is no worker's silence.
void ControlServer::Impl::forgive_own_absence(Clock::time_point now) {
  const auto absence = now - last_process_;
  last_process_ = now;
  if (absence < seconds(2)) return;
  for (Watch& watch : watches_) {
    watch.heard += absence;
    watch.progress.forgive(absence);
  }
  stalls_.forgive(absence);
}

void ControlServer::Impl::check_deadlines(Clock::time_point now) {
  answer(exchanges_.expire(now));
  for (int rank = 0; rank < options.size; ++rank) {
    const WorkerStatus& worker = workers[static_cast<std::size_t>(rank)];
    Watch& watch = watches_[static_cast<std::size_t>(rank)];
    if (!worker.connected || worker.finished) continue;
    if (!watch.reported_silent && now - watch.heard > options.deadlines.heartbeat) {
      watch.reported_silent = true;
      add(ControlEvent::Kind::silent, rank, seconds_text(now - watch.heard));
    }
    // A rank that waits for others has the exchange's deadline, which names them.
    if (watch.reported_no_progress) continue;
    if (std::string time = standstill(rank, now); !time.empty() && !exchanges_.is_waiting(rank)) {
      watch.reported_no_progress = true;
      add(ControlEvent::Kind::no_progress, rank, std::move(time));
    }
  }
  if (!reported_not_joined_ && joined < options.size && now - started_ > options.deadlines.join) {
    reported_not_joined_ = true;
    for (int rank = 0; rank < options.size; ++rank) {
      if (!workers[static_cast<std::size_t>(rank)].joined) add(ControlEvent::Kind::not_joined, rank);
    }
  }
  std::vector<int> mute;
  for (const auto& [fd, connection] : connections_) {
    if (connection.rank == nobody && now - connection.since > hello_deadline) mute.push_back(fd);
  }
  for (int fd : mute) {
    add(ControlEvent::Kind::refused, nobody, "a connection said nothing for 10 s");
    drop(fd);
  }
}

std::vector<ControlEvent> ControlServer::Impl::process(Clock::time_point now) {
  forgive_own_absence(now);
  std::array<epoll_event, 1024> ready;
  const int count = epoll_wait(poller.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    const int fd = ready[static_cast<std::size_t>(i)].data.fd;
    if (fd == listener.get()) {
      accept_all(now);
      continue;
    }
    auto found = connections_.find(fd);
    if (found == connections_.end()) continue;
    const auto what = ready[static_cast<std::size_t>(i)].events;
    if (what & EPOLLOUT) flush(found->second);
    if (what & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
      read_from(found->second, now);
    } else if (found->second.hang_up && found->second.out.empty()) {
      drop(fd);
    }
  }
  check_deadlines(now);
  return std::exchange(events_, {});
}

Clock::time_point ControlServer::Impl::next_deadline() const {
  // Silence and progress are looked at this often; exchanges end on time.
  auto next =
      last_process_ + std::clamp<milliseconds>(options.deadlines.heartbeat / 10, milliseconds(10), milliseconds(500));
  if (auto exchange = exchanges_.next_deadline()) next = std::min(next, *exchange);
  return next;
}

void ControlServer::Impl::stop(const std::string& reason) {
  if (!stop_reason_.empty()) return;
  stop_reason_ = reason.empty() ? "asked to stop" : reason;
  ControlMessage message;
  message.mutable_stop()->set_reason(stop_reason_);
  send_to_all(message);
}

void ControlServer::Impl::send_to_all(const ControlMessage& message) {
  for (auto& [fd, connection] : connections_) {
    if (connection.rank != nobody) send(connection, message);
  }
}

void ControlServer::Impl::ask_for_stacks() {
  ControlMessage message;
  message.mutable_stacks();
  send_to_all(message);
}

void ControlServer::Impl::end(ErrorKind kind, const std::string& text) {
  ControlMessage message;
  message.mutable_failure()->set_kind(static_cast<unsigned>(kind));
  message.mutable_failure()->set_message(text);
  send_to_all(message);
}

ControlServer::ControlServer(ControlServerOptions options, Clock::time_point now)
    : impl_(std::make_unique<Impl>(std::move(options), now)) {}
ControlServer::~ControlServer() = default;
int ControlServer::port() const { return port_of(impl_->listener); }
int ControlServer::descriptor() const { return impl_->poller.get(); }
ControlServer::Clock::time_point ControlServer::next_deadline() const { return impl_->next_deadline(); }
std::vector<ControlEvent> ControlServer::process(Clock::time_point now) { return impl_->process(now); }
void ControlServer::stop(const std::string& reason) { impl_->stop(reason); }
void ControlServer::end(ErrorKind kind, const std::string& message) { impl_->end(kind, message); }
void ControlServer::ask_for_stacks() { impl_->ask_for_stacks(); }
const WorkerStatus& ControlServer::worker(int rank) const { return impl_->workers.at(static_cast<std::size_t>(rank)); }
bool ControlServer::all_joined() const { return impl_->joined == impl_->options.size; }

}  // namespace ananke
