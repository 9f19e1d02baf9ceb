#include "runtime/control/control_client.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "ananke/control.pb.h"
#include "runtime/base/units.h"
#include "runtime/control/frame.h"
#include "runtime/control/socket.h"

namespace ananke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t console_limit = std::size_t{256} << 10;
constexpr milliseconds shortest_heartbeat{50};
constexpr milliseconds flush_deadline{1000};
// How much longer than its own deadline the launcher may take to say that an exchange has failed.
constexpr seconds launcher_margin{10};

ControlMessage hello_of(const ControlClientOptions& options) {
  ControlMessage message;
  Hello& hello = *message.mutable_hello();
  hello.set_secret(options.secret);
  hello.set_rank(static_cast<unsigned>(options.rank));
  hello.set_host(options.host);
  hello.set_process(static_cast<unsigned>(getpid()));
  return message;
}

// Signals are for the main thread.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

class ControlClient::Impl {
 public:
  explicit Impl(ControlClientOptions given);
  ~Impl();

  std::vector<std::string> exchange(const std::string& key, std::span<const int> members, std::string blob,
                                    bool after_work);
  void set_phase(std::string_view phase, std::uint64_t step);
  void console(std::string_view line);
  void post(const ControlMessage& message);
  void leave(const ControlMessage& last);  // posts it, waits until it is out, lets the launcher go
  ControlMessage failure(ErrorKind kind, const std::string& message);

  const ControlClientOptions options;
  std::atomic<bool> stop{false};
  mutable std::mutex mutex;
  std::string stop_reason;

 private:
  struct Answer {
    std::vector<std::string> blobs;
    ErrorKind kind = ErrorKind::internal;
    std::string error;
  };

  void join_job();
  void serve();
  void wake() const;
  Clock::time_point queue_heartbeat(Clock::time_point now);
  void queue_console();
  void send_some();
  bool receive_some();
  void handle(ControlMessage& message);
  void end(const Error& error);

  std::atomic<std::uint64_t> next_request_{0};
  Descriptor socket_, wake_;
  FrameReader reader_;
  milliseconds heartbeat_{1000};
  std::thread thread_;
  std::condition_variable changed_;
  // Guarded by mutex.
  std::string out_;                   // frames the kernel has not taken
  std::size_t console_bytes_ = 0;     // waiting in console_
  std::vector<std::string> console_;  // lines, sent when nothing else waits
  std::uint64_t console_dropped_ = 0;
  std::string phase_ = "start";
  std::uint64_t step_ = 0;
  bool phase_is_new_ = false, leaving_ = false, closing_ = false;
  Clock::time_point last_heartbeat_{};
  std::map<std::uint64_t, std::optional<Answer>> answers_;
  std::optional<Error> ended_;
};

ControlClient::Impl::Impl(ControlClientOptions given)
    : options(std::move(given)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) ananke::fail(ErrorKind::resource, "eventfd: {}", std::strerror(errno));
  join_job();
  const BlockedSignals blocked;
  thread_ = std::thread([this] { serve(); });
}

ControlClient::Impl::~Impl() {
  {
    std::lock_guard lock(mutex);
    closing_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

// Says Hello and waits for the Welcome, before there is a thread.
void ControlClient::Impl::join_job() {
  const auto until = Clock::now() + options.join_deadline;
  socket_ = connect_to(options.address, options.join_deadline);
  out_ = encode_frame(hello_of(options));
  ControlMessage message;
  while (!reader_.next(message)) {
    send_some();
    pollfd ready{socket_.get(), static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now()).count();
    if (left <= 0) {
      ananke::fail(ErrorKind::stalled, "the launcher at {} took the connection but did not answer within {}",
                   options.address, format_duration(std::chrono::duration<double>(options.join_deadline).count()));
    }
    poll(&ready, 1, static_cast<int>(std::min<long>(left, 1000)));
    if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) && !receive_some() && !reader_.next(message)) {
      ananke::fail(ErrorKind::stalled, "the launcher at {} closed the connection without an answer", options.address);
    }
    if (message.body_case() != ControlMessage::BODY_NOT_SET) break;
  }
  if (message.has_failure()) ananke::fail(ErrorKind::usage, "{}", message.failure().message());
  if (!message.has_welcome() || message.welcome().size() != static_cast<unsigned>(options.size)) {
    ananke::fail(ErrorKind::usage,
                 "the launcher at {} runs {} workers, this worker was told {}; start both from one job",
                 options.address, message.welcome().size(), options.size);
  }
  heartbeat_ = milliseconds(message.welcome().heartbeat_ms());
}

void ControlClient::Impl::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(wake_.get(), &one, sizeof one);
}

// Returns when the next one is due. A new phase goes out at once, though not more often than makes sense.
Clock::time_point ControlClient::Impl::queue_heartbeat(Clock::time_point now) {
  const auto due = last_heartbeat_ + (phase_is_new_ ? std::min(shortest_heartbeat, heartbeat_) : heartbeat_);
  if (now < due) return due;
  last_heartbeat_ = now;
  // Behind an unread queue it would tell nothing new.
  if (!out_.empty()) return now + shortest_heartbeat;
  ControlMessage message;
  message.mutable_heartbeat()->set_phase(phase_);
  message.mutable_heartbeat()->set_step(step_);
  if (options.activity) {
    const CallTrail::Activity activity = options.activity();
    message.mutable_heartbeat()->set_activity(activity.text);
    message.mutable_heartbeat()->set_waits(activity.waits);
  }
  if (options.item) {
    ControlClientOptions::Item item = options.item();
    message.mutable_heartbeat()->set_moved(item.begun);
    message.mutable_heartbeat()->set_place(item.place);
    message.mutable_heartbeat()->set_item(std::move(item.text));
  }
  out_ += encode_frame(message);
  phase_is_new_ = false;
  return now + heartbeat_;
}

// Everything else goes ahead of the console.
void ControlClient::Impl::queue_console() {
  for (const std::string& line : console_) {
    ControlMessage message;
    message.mutable_console()->set_line(line);
    out_ += encode_frame(message);
  }
  if (console_dropped_ > 0) {
    ControlMessage message;
    message.mutable_console()->set_line(fmt::format("[rank {}: {} lines dropped]", options.rank, console_dropped_));
    out_ += encode_frame(message);
  }
  console_.clear();
  console_bytes_ = console_dropped_ = 0;
}

void ControlClient::Impl::send_some() {
  while (!out_.empty() || !console_.empty()) {
    if (out_.empty()) queue_console();
    const ssize_t sent = ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      if (errno != EAGAIN) out_.clear();  // the reading side sees the end
      return;
    }
    out_.erase(0, static_cast<std::size_t>(sent));
  }
}

// False at the end of the stream.
bool ControlClient::Impl::receive_some() {
  std::array<char, 65536> bytes;
  for (;;) {
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    reader_.add({bytes.data(), static_cast<std::size_t>(got)});
    if (static_cast<std::size_t>(got) < bytes.size()) return true;
  }
}

void ControlClient::Impl::handle(ControlMessage& message) {
  if (message.has_exchange()) {
    Exchange& exchange = *message.mutable_exchange();
    std::lock_guard lock(mutex);
    auto found = answers_.find(exchange.request());
    if (found == answers_.end()) return;  // its caller has given up
    found->second = Answer{{std::make_move_iterator(exchange.mutable_blobs()->begin()),
                            std::make_move_iterator(exchange.mutable_blobs()->end())},
                           static_cast<ErrorKind>(exchange.error_kind()),
                           exchange.error()};
    changed_.notify_all();
  } else if (message.has_stop()) {
    std::lock_guard lock(mutex);
    if (!stop) stop_reason = message.stop().reason();
    stop = true;
  } else if (message.has_stacks()) {
    if (options.on_stacks_wanted) return options.on_stacks_wanted();
    message.mutable_stacks()->set_text("this worker gives none\n");
    post(message);
  } else if (message.has_failure()) {
    throw Error(static_cast<ErrorKind>(message.failure().kind()), message.failure().message());
  }
}

void ControlClient::Impl::end(const Error& error) {
  bool tell = false;
  {
    std::lock_guard lock(mutex);
    ended_ = error;
    tell = !leaving_ && !closing_;
    out_.clear();
    changed_.notify_all();
  }
  if (tell && options.on_end) options.on_end(error);
}

void ControlClient::Impl::serve() {
  try {
    ControlMessage message;
    while (reader_.next(message)) handle(message);  // what came along with the Welcome
    for (;;) {
      pollfd ready[2] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      long wait = 0;
      {
        std::lock_guard lock(mutex);
        const auto now = Clock::now();
        const auto due = queue_heartbeat(now);
        send_some();
        if (closing_) return;
        if (out_.empty()) {
          changed_.notify_all();
        } else {
          ready[0].events |= POLLOUT;
        }
        wait = std::max<long>(1, std::chrono::ceil<milliseconds>(due - now).count());
      }
      poll(ready, 2, static_cast<int>(wait));
      if (ready[1].revents) {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t ignored = read(wake_.get(), &count, sizeof count);
      }
      if (ready[0].revents & (POLLIN | POLLHUP | POLLERR)) {
        const bool open = receive_some();
        while (reader_.next(message)) handle(message);
        if (!open) {
          ananke::fail(ErrorKind::worker_failed, "the launcher at {} is gone; this worker ends with it",
                       options.address);
        }
      }
    }
  } catch (const Error& error) {
    end(error);
  } catch (const std::exception& error) {
    end(Error(ErrorKind::internal, fmt::format("control channel: {}", error.what())));
  }
}

void ControlClient::Impl::post(const ControlMessage& message) {
  const std::string frame = encode_frame(message);
  {
    std::lock_guard lock(mutex);
    if (ended_) return;
    out_ += frame;
  }
  wake();
}

std::vector<std::string> ControlClient::Impl::exchange(const std::string& key, std::span<const int> members,
                                                       std::string blob, bool after_work) {
  ControlMessage message;
  Exchange& request = *message.mutable_exchange();
  request.set_key(key);
  for (int member : members) request.add_members(static_cast<unsigned>(member));
  request.set_blob(std::move(blob));
  request.set_after_work(after_work);
  const std::uint64_t id = next_request_++;
  request.set_request(id);
  const std::string frame = encode_frame(message);
  std::unique_lock lock(mutex);
  answers_[id] = std::nullopt;
  out_ += frame;
  wake();
  const auto patience = (after_work ? options.step_deadline : options.exchange_deadline) + launcher_margin;
  const bool answered =
      changed_.wait_for(lock, patience, [&] { return answers_[id].has_value() || ended_.has_value(); });
  const std::optional<Answer> answer = std::move(answers_[id]);
  answers_.erase(id);
  if (answer && answer->error.empty()) return std::move(answer->blobs);
  if (answer) throw Error(answer->kind, answer->error);
  if (answered) throw Error(*ended_);
  ananke::fail(ErrorKind::stalled, "exchange '{}' of rank {}: the launcher did not answer within {}", key, options.rank,
               format_duration(std::chrono::duration<double>(patience).count()));
}

void ControlClient::Impl::set_phase(std::string_view phase, std::uint64_t step) {
  if (options.on_phase) options.on_phase(phase, step);
  {
    std::lock_guard lock(mutex);
    if (phase_ == phase && step_ == step) return;
    phase_ = phase;
    step_ = step;
    if (std::exchange(phase_is_new_, true)) return;  // the thread knows already
  }
  wake();
}

void ControlClient::Impl::console(std::string_view line) {
  {
    std::lock_guard lock(mutex);
    if (ended_ || console_bytes_ + line.size() > console_limit) {
      ++console_dropped_;
      return;
    }
    console_.emplace_back(line);
    console_bytes_ += line.size() + 1;
  }
  wake();
}

ControlMessage ControlClient::Impl::failure(ErrorKind kind, const std::string& text) {
  ControlMessage message;
  Failure& failure = *message.mutable_failure();
  failure.set_kind(static_cast<unsigned>(kind));
  failure.set_rank(static_cast<unsigned>(options.rank));
  failure.set_message(text);
  std::lock_guard lock(mutex);
  failure.set_phase(phase_);
  failure.set_step(step_);
  return message;
}

void ControlClient::Impl::leave(const ControlMessage& last) {
  post(last);
  std::unique_lock lock(mutex);
  leaving_ = true;
  changed_.wait_for(lock, flush_deadline, [&] { return (out_.empty() && console_.empty()) || ended_.has_value(); });
}

ControlClient::ControlClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlClient::~ControlClient() = default;

std::unique_ptr<ControlClient> ControlClient::connect(ControlClientOptions options) {
  return std::unique_ptr<ControlClient>(new ControlClient(std::make_unique<Impl>(std::move(options))));
}

int ControlClient::rank() const { return impl_->options.rank; }
int ControlClient::size() const { return impl_->options.size; }
std::vector<std::string> ControlClient::exchange(const std::string& key, std::span<const int> members,
                                                 std::string blob) {
  return impl_->exchange(key, members, std::move(blob), false);
}

std::vector<std::string> ControlClient::exchange_after_work(const std::string& key, std::span<const int> members,
                                                            std::string blob) {
  return impl_->exchange(key, members, std::move(blob), true);
}
void ControlClient::set_phase(std::string_view phase, std::uint64_t step) { impl_->set_phase(phase, step); }
bool ControlClient::stop_requested() const noexcept { return impl_->stop; }

std::string ControlClient::stop_reason() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->stop_reason;
}

void ControlClient::request_stop(const std::string& reason) {
  ControlMessage message;
  message.mutable_stop()->set_reason(reason);
  impl_->post(message);
}

void ControlClient::give_stacks(std::string text) {
  ControlMessage message;
  message.mutable_stacks()->set_text(std::move(text));
  impl_->post(message);
}

void ControlClient::console(std::string_view line) noexcept {
  try {
    impl_->console(line);
  } catch (...) {  // out of memory: the line is lost, the training is not
  }
}

void ControlClient::fail(ErrorKind kind, const std::string& message) noexcept {
  try {
    impl_->leave(impl_->failure(kind, message));
  } catch (...) {  // the exit status still says that this worker failed
  }
}

void ControlClient::finish(int exit_code) noexcept {
  try {
    ControlMessage message;
    message.mutable_finished()->set_exit_code(static_cast<unsigned>(exit_code));
    impl_->leave(message);
  } catch (...) {
  }
}

}  // namespace ananke
