#include "plugins/backend_host/host_communicator.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "plugins/backend_host/collectives.h"
#include "plugins/backend_host/host_stream.h"
#include "runtime/base/error.h"
#include "runtime/comm/collective_checks.h"
#include "runtime/comm/exchange_table.h"
#include "runtime/plugin/plugin_call.h"

namespace ananke {
namespace {

std::vector<std::size_t> to_bytes(std::span<const std::int64_t> counts, const TensorView& tensor) {
  std::vector<std::size_t> bytes;
  for (std::int64_t count : counts) bytes.push_back(static_cast<std::size_t>(count) * size_of(tensor.dtype));
  return bytes;
}

}  // namespace

struct HostCommunicator::Core {
  Core(Setup s, std::unique_ptr<Transport> t, Arena& memory)
      : setup(std::move(s)), checks{setup.name, setup.rank, size()}, transport(std::move(t)) {
    if (transport) collectives = std::make_unique<Collectives>(*transport, setup.rank, size(), memory);
  }
  int size() const { return static_cast<int>(setup.ranks.size()); }
  template <class Body>
  void run(const char* what, Body body);

  const Setup setup;
  CollectiveChecks checks;
  const std::unique_ptr<Transport> transport;
  std::unique_ptr<Collectives> collectives;
  std::atomic<bool> busy = false;
};

template <class Body>
void HostCommunicator::Core::run(const char* what, Body body) {
  ANANKE_CHECK(!busy.exchange(true),
               "communicator {}: {} runs while another of its collectives is running; put them on "
               "one stream or order the streams by events",
               setup.name, what);
  const PluginWait wait;  // for the peers: nearly all of the time
  try {
    if (setup.delay.count() > 0) std::this_thread::sleep_for(setup.delay);
    body(*collectives);
  } catch (const Error& error) {
    fail(error.kind(), "communicator {} of {}, {} on rank {}: {}", setup.name, format_ranks(setup.ranks), what,
         setup.ranks[static_cast<std::size_t>(setup.rank)], error.what());
  }
  busy = false;  // after an error it is of no further use
}

HostCommunicator::HostCommunicator(Setup setup, std::unique_ptr<Transport> transport, Arena& memory)
    : core_(std::make_shared<Core>(std::move(setup), std::move(transport), memory)) {
  ANANKE_CHECK(core_->transport || core_->size() == 1, "communicator {} of {} ranks has no transport",
               core_->setup.name, core_->size());
}

HostCommunicator::~HostCommunicator() {
  if (core_->transport) core_->transport->leave();
}

int HostCommunicator::rank() const { return core_->setup.rank; }
int HostCommunicator::size() const { return core_->size(); }

void HostCommunicator::abort() noexcept {
  if (core_->transport) core_->transport->abort();
}

void HostCommunicator::all_gather(Stream& stream, const TensorView& send, const TensorView& receive) {
  HostStream& mine = HostStream::of(stream);
  core_->checks.all_gather(send, receive);
  if (send.bytes() == 0 || (size() == 1 && send.data == receive.data)) return;
  mine.enqueue([core = core_, send, receive] {
    if (core->size() == 1) {
      std::memcpy(receive.data, send.data, send.bytes());
    } else {
      core->run("all_gather", [&](Collectives& collectives) { collectives.all_gather(send, receive); });
    }
  });
}

void HostCommunicator::reduce_scatter(Stream& stream, const TensorView& send, const TensorView& receive) {
  HostStream& mine = HostStream::of(stream);
  core_->checks.reduce_scatter(send, receive);
  if (receive.bytes() == 0) return;
  mine.enqueue([core = core_, send, receive] {
    if (core->size() == 1) {
      std::memcpy(receive.data, send.data, send.bytes());
    } else {
      core->run("reduce_scatter", [&](Collectives& collectives) { collectives.reduce_scatter(send, receive); });
    }
  });
}

void HostCommunicator::all_reduce(Stream& stream, const TensorView& buffer, Reduction reduction) {
  HostStream& mine = HostStream::of(stream);
  core_->checks.all_reduce(buffer);
  if (size() == 1 || buffer.bytes() == 0) return;
  mine.enqueue([core = core_, buffer, reduction] {
    core->run("all_reduce", [&](Collectives& collectives) { collectives.all_reduce(buffer, reduction); });
  });
}

void HostCommunicator::broadcast(Stream& stream, const TensorView& buffer, int root) {
  HostStream& mine = HostStream::of(stream);
  core_->checks.broadcast(root);
  if (size() == 1 || buffer.bytes() == 0) return;
  mine.enqueue([core = core_, buffer, root] {
    core->run("broadcast", [&](Collectives& collectives) { collectives.broadcast(buffer, root); });
  });
}

void HostCommunicator::all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> send_counts,
                                  const TensorView& receive, std::span<const std::int64_t> receive_counts) {
  HostStream& mine = HostStream::of(stream);
  core_->checks.all_to_all(send, send_counts, receive, receive_counts);
  // Even where this rank has nothing to exchange others may have.
  mine.enqueue(
      [core = core_, send, receive, out = to_bytes(send_counts, send), in = to_bytes(receive_counts, receive)] {
        if (core->size() == 1) {
          if (out[0]) std::memcpy(receive.data, send.data, out[0]);
        } else {
          core->run("all_to_all", [&](Collectives& collectives) { collectives.all_to_all(send, out, receive, in); });
        }
      });
}

bool HostCommunicator::share(Stream&, const TensorView& memory) {
  if (size() == 1) return false;
  core_->checks.shared.push_back(memory);
  return true;
}

void HostCommunicator::all_to_all_rows(Stream& stream, const RowExchange& a) {
  HostStream& mine = HostStream::of(stream);
  core_->checks.all_to_all_rows(a);
  mine.enqueue([core = core_, a] {
    core->run("all_to_all_rows", [&](Collectives& collectives) { collectives.all_to_all_rows(a); });
  });
}

void HostCommunicator::sum_parts(Stream& stream, const TensorView& parts, const TensorView& sum, bool add) {
  HostStream& mine = HostStream::of(stream);
  core_->checks.sum_parts(parts, sum);
  if (sum.elements() == 0) return;
  mine.enqueue([core = core_, parts, sum, add] {
    core->run("sum_parts", [&](Collectives& collectives) { collectives.sum_parts(parts, sum, add); });
  });
}

}  // namespace ananke
