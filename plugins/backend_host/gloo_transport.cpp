#include "plugins/backend_host/gloo_transport.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <net/if.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/comm/exchange_table.h"

namespace ananke {
namespace {

using gloo::transport::UnboundBuffer;
constexpr std::uint64_t slot = 0;  // a pair's messages of one slot keep their order, which is all that is needed

// Gloo sets its host name under "rank_R", then its addresses under "R", then asks for both of every peer: one exchange
// at the second set answers everything (host names serve an option of Gloo's that is not used here).
class ExchangeStore final : public gloo::rendezvous::Store {
 public:
  explicit ExchangeStore(const GlooDevice::Setup& setup) : setup_(setup) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    if (!is_host(key)) blobs_ = setup_.exchange(std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    if (is_host(key)) return {'-'};
    const std::string& blob = blobs_.at(std::stoul(key));
    return {blob.begin(), blob.end()};
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

 private:
  static bool is_host(const std::string& key) { return key.starts_with("rank_"); }
  const GlooDevice::Setup& setup_;
  std::vector<std::string> blobs_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(std::shared_ptr<gloo::rendezvous::Context> context, std::vector<int> ranks,
                std::chrono::milliseconds deadline, Arena& memory)
      : context_(std::move(context)), ranks_(std::move(ranks)), deadline_(deadline), memory_(memory) {}

  void exchange(std::span<const Part> sends, std::span<Part> receives) override;
  void finish() override {}
  void abort() noexcept override;

 private:
  struct Pending {
    int peer;
    std::unique_ptr<UnboundBuffer> receive, send;
  };
  void assign_landing(std::span<Part> receives);
  void post(std::span<const Part> sends, std::span<const Part> receives);
  void complete();
  [[noreturn]] void fail_at(int peer, const std::string& reason);

  const std::shared_ptr<gloo::rendezvous::Context> context_;
  const std::vector<int> ranks_;
  const std::chrono::milliseconds deadline_;
  Arena& memory_;
  Buffer landing_;
  std::mutex mutex_;  // of what abort() looks at
  bool aborted_ = false;
  std::vector<Pending> pending_;
};

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
  assign_landing(receives);
  post(sends, receives);
  complete();
  std::lock_guard lock(mutex_);
  pending_.clear();
}

void GlooTransport::post(std::span<const Part> sends, std::span<const Part> receives) {
  std::lock_guard lock(mutex_);
  if (aborted_) fail(ErrorKind::worker_failed, "it was closed on this rank");
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
      if (pending.receive) pending.receive->recv(peer, slot);
    }
    for (auto& pending : pending_) {
      peer = pending.peer;
      if (pending.send) pending.send->send(peer, slot);
    }
  } catch (const std::exception& error) {
    fail_at(peer, error.what());
  }
}

void GlooTransport::complete() {
  using Clock = std::chrono::steady_clock;
  const auto due = Clock::now() + deadline_;
  const auto left = [&] {
    return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(due - Clock::now()),
                    std::chrono::milliseconds(1));
  };
  for (auto& pending : pending_) {  // only abort() looks at it meanwhile
    try {
      const bool done = (!pending.receive || pending.receive->waitRecv(left())) &&
                        (!pending.send || pending.send->waitSend(left()));
      if (!done) fail(ErrorKind::worker_failed, "it was closed on this rank");
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail_at(pending.peer, error.what());
    }
  }
}

void GlooTransport::fail_at(int peer, const std::string& reason) {
  const int world = ranks_[static_cast<std::size_t>(peer)];
  if (reason.find("imed out") != std::string::npos) {
    fail(ErrorKind::stalled, "rank {} did not come within {}", world,
         format_duration(std::chrono::duration<double>(deadline_).count()));
  }
  fail(ErrorKind::worker_failed, "the connection to rank {} is lost ({})", world, reason);
}

void GlooTransport::abort() noexcept {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  for (auto& pending : pending_) {
    if (pending.receive) pending.receive->abortWaitRecv();
    if (pending.send) pending.send->abortWaitSend();
  }
  try {
    context_->closeConnections();  // so that the others' waits end, too
  } catch (const std::exception&) {
    // A connection that cannot be closed is gone already.
  }
}

}  // namespace

struct GlooDevice::Impl {
  std::shared_ptr<gloo::transport::Device> device;
};

GlooDevice::GlooDevice(const std::string& interface) : impl_(std::make_unique<Impl>()) {
  gloo::transport::tcp::attr attributes;
  if (interface.empty()) {
    attributes.hostname = "127.0.0.1";
  } else if (if_nametoindex(interface.c_str()) != 0) {
    attributes.iface = interface;
  } else {
    attributes.hostname = interface;
  }
  try {
    impl_->device = gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    fail(ErrorKind::config,
         "backend_host cannot listen on network interface '{}' ({}); name an interface that is up (`ip address` lists "
         "them) or an address of this host in the site's network_interface or the plugin's interface",
         interface, error.what());
  }
}

GlooDevice::~GlooDevice() = default;

std::unique_ptr<Transport> GlooDevice::connect(const Setup& setup, Arena& memory) {
  auto context = std::make_shared<gloo::rendezvous::Context>(setup.rank, static_cast<int>(setup.ranks.size()));
  context->setTimeout(std::max(setup.connect_deadline / 5, std::chrono::milliseconds(1)));  // Gloo waits five times it
  ExchangeStore store(setup);
  try {
    context->connectFullMesh(store, impl_->device);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorKind::worker_failed, "cannot connect with {}: {}", format_ranks(setup.ranks), error.what());
  }
  return std::make_unique<GlooTransport>(std::move(context), setup.ranks, setup.deadline, memory);
}

}  // namespace ananke
