#include "plugins/backend_host/gloo_transport.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/comm/exchange_table.h"

namespace ananke {
namespace {

using gloo::transport::UnboundBuffer;
// A connection's messages of one slot keep their order, which is all that is needed.
constexpr std::uint64_t data_slot = 0, sentinel_slot = 1;

// Ranks with equal ones reach each other over loopback.
std::string network_of_this_process() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char space[128] = "", host[256] = "";
  if (readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) space[0] = 0;
  gethostname(host, sizeof host - 1);
  return fmt::format("{} {} {}", host, boot, space);
}

// Gloo sets its host name under "rank_R", then its addresses under "R", then asks for both of every peer: one exchange
// at the second set answers everything (host names serve an option of Gloo's that is not used here).
class ExchangeStore final : public gloo::rendezvous::Store {
 public:
  ExchangeStore(const GlooDevice::Setup& setup, bool loopback) : setup_(setup), loopback_(loopback) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    if (is_host(key)) return;
    blobs_ = setup_.exchange("addresses", network_of_this_process() + "\n" + std::string(data.begin(), data.end()));
    if (loopback_) check_loopback();
  }
  std::vector<char> get(const std::string& key) override {
    if (is_host(key)) return {'-'};
    const std::string& blob = blobs_.at(std::stoul(key));
    return {blob.begin() + static_cast<std::ptrdiff_t>(blob.find('\n')) + 1, blob.end()};
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

 private:
  static bool is_host(const std::string& key) { return key.starts_with("rank_"); }
  void check_loopback() const {
    const auto network = [&](std::size_t p) { return blobs_[p].substr(0, blobs_[p].find('\n')); };
    const auto host = [&](std::size_t p) { return blobs_[p].substr(0, blobs_[p].find(' ')); };
    for (std::size_t p = 1; p < blobs_.size(); ++p) {
      if (network(p) == network(0)) continue;
      fail(ErrorKind::config,
           "backend_host: rank {} on {} and rank {} on {} have no loopback in common; set network_interface in the "
           "site to the interface that the hosts reach each other by",
           setup_.ranks[0], host(0), setup_.ranks[p], host(p));
    }
  }

  const GlooDevice::Setup& setup_;
  const bool loopback_;
  std::vector<std::string> blobs_;
};

[[noreturn]] void fail_to_listen(const std::string& interface, const char* reason) {
  fail(ErrorKind::config,
       "backend_host cannot listen on network interface '{}' ({}); name an interface that is up (`ip address` lists "
       "them) or an address of this host in the site's network_interface or the plugin's",
       interface, reason);
}

using Clock = std::chrono::steady_clock;

// A write to a lost connection shall be an error, not the end of the process. For good: a pending signal would end it
// as soon as it is let through.
void block_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// Gloo tells of a lost connection to receives that have not begun, not to sends and receives under way. So each
// connection has a sentinel, a receive that never completes and always hears of the loss, and a watch interrupts every
// wait now and then to look at the sentinels, the deadline and abort().
class GlooTransport final : public Transport {
 public:
  GlooTransport(std::shared_ptr<gloo::rendezvous::Context> context, std::vector<int> ranks,
                std::chrono::milliseconds deadline, Arena& memory);

  void exchange(std::span<const Part> sends, std::span<Part> receives) override;
  void finish() override {}
  void abort() noexcept override;
  void leave() noexcept override;
  void interrupt();  // by the watch

 private:
  struct Pending {
    int peer;
    std::unique_ptr<UnboundBuffer> receive, send;
  };
  void assign_landing(std::span<Part> receives);
  void post(std::span<const Part> sends, std::span<const Part> receives);
  void complete();
  template <class WaitFor>
  void wait(int peer, Clock::time_point due, WaitFor wait_for);
  void check(int peer, Clock::time_point due);
  bool is_lost(int peer);
  [[noreturn]] void fail_lost(int peer, const std::string& reason) const;
  void close_connections() noexcept;

  const std::shared_ptr<gloo::rendezvous::Context> context_;
  const std::vector<int> ranks_;
  const std::chrono::milliseconds deadline_;
  Arena& memory_;
  Buffer landing_;
  std::byte never_received_{};
  std::vector<std::unique_ptr<UnboundBuffer>> sentinels_;  // by peer
  std::mutex mutex_;                                       // of what other threads look at
  bool closed_ = false;
  std::optional<Clock::time_point> close_at_;
  std::vector<Pending> pending_;
};

GlooTransport::GlooTransport(std::shared_ptr<gloo::rendezvous::Context> context, std::vector<int> ranks,
                             std::chrono::milliseconds deadline, Arena& memory)
    : context_(std::move(context)), ranks_(std::move(ranks)), deadline_(deadline), memory_(memory) {
  sentinels_.resize(ranks_.size());
  for (int peer = 0; peer < context_->size; ++peer) {
    if (peer == context_->rank) continue;
    auto& sentinel = sentinels_[static_cast<std::size_t>(peer)];
    sentinel = context_->createUnboundBuffer(&never_received_, 1);
    sentinel->recv(peer, sentinel_slot);
  }
}

void GlooTransport::assign_landing(std::span<Part> receives) {
  const auto place = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  std::size_t total = 0;
  for (int p = 0; p < context_->size; ++p) {
    const Part& part = receives[static_cast<std::size_t>(p)];
    if (p != context_->rank && !part.data) total += place(part.bytes);
  }
  if (total > landing_.bytes()) {
    landing_ = Buffer();
    landing_ = memory_.allocate(total, "communicator landing");
  }
  std::size_t at = 0;
  for (int p = 0; p < context_->size; ++p) {
    Part& part = receives[static_cast<std::size_t>(p)];
    if (p == context_->rank || part.data || !part.bytes) continue;
    part.data = static_cast<std::byte*>(landing_.data()) + at;
    at += place(part.bytes);
  }
}

void GlooTransport::exchange(std::span<const Part> sends, std::span<Part> receives) {
  block_sigpipe();
  assign_landing(receives);
  try {
    post(sends, receives);
    complete();
  } catch (...) {
    close_connections();  // before the caller frees what Gloo reads and writes
    throw;
  }
  std::lock_guard lock(mutex_);
  pending_.clear();
}

void GlooTransport::post(std::span<const Part> sends, std::span<const Part> receives) {
  std::lock_guard lock(mutex_);
  if (closed_) fail(ErrorKind::worker_failed, "it was closed on this rank");
  for (int step = 1; step < context_->size; ++step) {  // each begins with another peer
    Pending pending{(context_->rank + step) % context_->size, nullptr, nullptr};
    const Part& in = receives[static_cast<std::size_t>(pending.peer)];
    const Part& out = sends[static_cast<std::size_t>(pending.peer)];
    if (in.bytes) pending.receive = context_->createUnboundBuffer(in.data, in.bytes);
    if (out.bytes) pending.send = context_->createUnboundBuffer(out.data, out.bytes);
    if (in.bytes || out.bytes) pending_.push_back(std::move(pending));
  }
  int peer = 0;
  try {
    for (auto& pending : pending_) {
      peer = pending.peer;
      if (pending.receive) pending.receive->recv(peer, data_slot);
    }
    for (auto& pending : pending_) {
      peer = pending.peer;
      if (pending.send) pending.send->send(peer, data_slot);
    }
  } catch (const std::exception& error) {
    fail_lost(peer, error.what());
  }
}

void GlooTransport::complete() {
  const auto due = Clock::now() + deadline_;
  for (auto& pending : pending_) {
    if (pending.receive) wait(pending.peer, due, [&](auto limit) { return pending.receive->waitRecv(limit); });
    if (pending.send) wait(pending.peer, due, [&](auto limit) { return pending.send->waitSend(limit); });
  }
}

// `wait_for` gives false when it was interrupted. A peer that is gone may have left after its last call, with all that
// belongs to it already here.
template <class WaitFor>
void GlooTransport::wait(int peer, Clock::time_point due, WaitFor wait_for) {
  constexpr std::chrono::milliseconds forever = std::chrono::hours(24 * 365), at_once{1};
  bool lost = false;
  try {
    while (!wait_for(lost ? at_once : forever)) {
      check(peer, due);
      lost = is_lost(peer);
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_lost(peer, lost ? "noticed while waiting" : error.what());
  }
}

void GlooTransport::check(int peer, Clock::time_point due) {
  std::lock_guard lock(mutex_);
  if (closed_) fail(ErrorKind::worker_failed, "it was closed on this rank");
  if (Clock::now() >= due) {
    fail(ErrorKind::stalled, "rank {} did not come within {}", ranks_[static_cast<std::size_t>(peer)],
         format_duration(std::chrono::duration<double>(deadline_).count()));
  }
}

bool GlooTransport::is_lost(int peer) {
  auto& sentinel = sentinels_[static_cast<std::size_t>(peer)];
  try {
    sentinel->abortWaitRecv();  // the wait returns at once, unless there is an error to throw
    sentinel->waitRecv();
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

void GlooTransport::fail_lost(int peer, const std::string& reason) const {
  fail(ErrorKind::worker_failed, "the connection to rank {} is lost ({})", ranks_[static_cast<std::size_t>(peer)],
       reason);
}

void GlooTransport::interrupt() {
  bool close = false;
  {
    std::lock_guard lock(mutex_);
    for (auto& pending : pending_) {
      if (pending.receive) pending.receive->abortWaitRecv();
      if (pending.send) pending.send->abortWaitSend();
    }
    if (close_at_ && Clock::now() >= *close_at_) {
      close_at_.reset();
      close = true;
    }
  }
  if (close) close_connections();
}

void GlooTransport::leave() noexcept {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  interrupt();
}

// Closing throws away what is still on its way, so that the others' waits end. Where nothing is under way here, as at
// the end of a job, they are given the time to get what belongs to the last call.
void GlooTransport::abort() noexcept {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    if (!close_at_) close_at_ = Clock::now() + (pending_.empty() ? std::chrono::seconds(1) : std::chrono::seconds(0));
  }
  interrupt();
}

void GlooTransport::close_connections() noexcept {
  try {
    context_->closeConnections();
  } catch (const std::exception&) {
    // A connection that cannot be closed is gone already.
  }
}

// A numeric address; Gloo's own look-up goes on with a pointer to nowhere when it finds none.
std::string resolve(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  char text[NI_MAXHOST] = "";
  int result = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (result == 0) {
    result = getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    freeaddrinfo(found);
  }
  if (result != 0) fail_to_listen(host, gai_strerror(result));
  return text;
}

// Interrupts the waits of all transports of a process a few times a second.
class Watch {
 public:
  Watch() : thread_([this] { run(); }) {}
  ~Watch() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void add(const std::shared_ptr<GlooTransport>& transport) {
    std::lock_guard lock(mutex_);
    std::erase_if(watched_, [](const auto& watched) { return watched.expired(); });
    watched_.push_back(transport);
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "gloo watch");
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(100), [&] { return stop_; })) {
      const auto watched = watched_;
      lock.unlock();  // the last owner of a transport takes long to end it
      for (const auto& each : watched) {
        if (const auto transport = each.lock()) transport->interrupt();
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<std::weak_ptr<GlooTransport>> watched_;
  std::thread thread_;
};

// What a communicator owns: the watch may hold the transport a moment longer.
class WatchedTransport final : public Transport {
 public:
  explicit WatchedTransport(std::shared_ptr<GlooTransport> transport) : transport_(std::move(transport)) {}
  void exchange(std::span<const Part> sends, std::span<Part> receives) override {
    transport_->exchange(sends, receives);
  }
  void finish() override { transport_->finish(); }
  void abort() noexcept override { transport_->abort(); }
  void leave() noexcept override { transport_->leave(); }

 private:
  const std::shared_ptr<GlooTransport> transport_;
};

}  // namespace

struct GlooDevice::Impl {
  std::shared_ptr<gloo::transport::Device> device;
  bool loopback = false;
  Watch watch;
};

GlooDevice::GlooDevice(const std::string& interface) : impl_(std::make_unique<Impl>()) {
  gloo::transport::tcp::attr attributes;
  if (interface.empty()) {
    attributes.hostname = "127.0.0.1";
    impl_->loopback = true;
  } else if (if_nametoindex(interface.c_str()) != 0) {
    attributes.iface = interface;
  } else {
    attributes.hostname = resolve(interface);
  }
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  block_sigpipe();  // for Gloo's thread, which inherits it
  try {
    impl_->device = gloo::transport::tcp::CreateDevice(attributes);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  } catch (const std::exception& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    fail_to_listen(interface, error.what());
  }
}

GlooDevice::~GlooDevice() = default;

std::unique_ptr<Transport> GlooDevice::connect(const Setup& setup, Arena& memory) {
  auto context = std::make_shared<gloo::rendezvous::Context>(setup.rank, static_cast<int>(setup.ranks.size()));
  context->setTimeout(std::max(setup.connect_deadline / 5, std::chrono::milliseconds(1)));  // Gloo waits five times it
  ExchangeStore store(setup, impl_->loopback);
  try {
    context->connectFullMesh(store, impl_->device);
    auto transport = std::make_shared<GlooTransport>(std::move(context), setup.ranks, setup.deadline, memory);
    // Gloo ends the process where a connection is closed before the other end has taken note of it: nobody leaves
    // before.
    setup.exchange("connected", "");
    impl_->watch.add(transport);
    return std::make_unique<WatchedTransport>(std::move(transport));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorKind::worker_failed, "cannot connect with {}: {}", format_ranks(setup.ranks), error.what());
  }
}

}  // namespace ananke
