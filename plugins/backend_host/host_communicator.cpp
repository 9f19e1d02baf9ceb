#include "plugins/backend_host/host_communicator.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "plugins/backend_host/collectives.h"
#include "plugins/backend_host/host_stream.h"
#include "runtime/base/error.h"
#include "runtime/comm/exchange_table.h"
#include "runtime/plugin/plugin_call.h"

namespace ananke {
namespace {

bool overlap(const TensorView& a, const TensorView& b) {
  const auto* first = static_cast<const std::byte*>(a.data);
  const auto* second = static_cast<const std::byte*>(b.data);
  const std::less<const std::byte*> before;
  return a.bytes() && b.bytes() && before(first, second + b.bytes()) && before(second, first + a.bytes());
}

std::vector<std::size_t> to_bytes(std::span<const std::int64_t> counts, const TensorView& tensor) {
  std::vector<std::size_t> bytes;
  for (std::int64_t count : counts) bytes.push_back(static_cast<std::size_t>(count) * size_of(tensor.dtype));
  return bytes;
}

}  // namespace

struct HostCommunicator::Core {
  Core(Setup s, std::unique_ptr<Transport> t, Arena& memory) : setup(std::move(s)), transport(std::move(t)) {
    if (transport) collectives = std::make_unique<Collectives>(*transport, setup.rank, size(), memory);
  }
  int size() const { return static_cast<int>(setup.ranks.size()); }
  template <class Body>
  void run(const char* what, Body body);

  const Setup setup;
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
  ANANKE_CHECK(send.dtype == receive.dtype && receive.elements() == size() * send.elements(),
               "communicator {}: all_gather of {} {} into {} {}: it must be {} times as many of the same type",
               core_->setup.name, send.elements(), name_of(send.dtype), receive.elements(), name_of(receive.dtype),
               size());
  const auto* place = static_cast<const std::byte*>(receive.data) + static_cast<std::size_t>(rank()) * send.bytes();
  ANANKE_CHECK(!overlap(send, receive) || send.data == place,
               "communicator {}: all_gather in place needs `send` at block {} of `receive`", core_->setup.name, rank());
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
  ANANKE_CHECK(
      send.dtype == DType::f32 && receive.dtype == DType::f32 && send.elements() == size() * receive.elements(),
      "communicator {}: reduce_scatter of {} {} into {} {}: it takes f32 and {} times as many as it gives",
      core_->setup.name, send.elements(), name_of(send.dtype), receive.elements(), name_of(receive.dtype), size());
  ANANKE_CHECK(!overlap(send, receive), "communicator {}: reduce_scatter's `receive` overlaps `send`",
               core_->setup.name);
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
  ANANKE_CHECK(buffer.dtype == DType::f32 || buffer.dtype == DType::f64 || buffer.dtype == DType::i64,
               "communicator {}: all_reduce of {}; it takes f32, f64 and i64", core_->setup.name,
               name_of(buffer.dtype));
  if (size() == 1 || buffer.bytes() == 0) return;
  mine.enqueue([core = core_, buffer, reduction] {
    core->run("all_reduce", [&](Collectives& collectives) { collectives.all_reduce(buffer, reduction); });
  });
}

void HostCommunicator::broadcast(Stream& stream, const TensorView& buffer, int root) {
  HostStream& mine = HostStream::of(stream);
  ANANKE_CHECK(root >= 0 && root < size(), "communicator {}: broadcast from rank {} of {}", core_->setup.name, root,
               size());
  if (size() == 1 || buffer.bytes() == 0) return;
  mine.enqueue([core = core_, buffer, root] {
    core->run("broadcast", [&](Collectives& collectives) { collectives.broadcast(buffer, root); });
  });
}

void HostCommunicator::all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> send_counts,
                                  const TensorView& receive, std::span<const std::int64_t> receive_counts) {
  HostStream& mine = HostStream::of(stream);
  const auto check = [&](const char* what, const TensorView& tensor, std::span<const std::int64_t> counts) {
    std::int64_t sum = 0;
    for (std::int64_t count : counts) {
      ANANKE_CHECK(count >= 0, "communicator {}: all_to_all's {} has a count of {}", core_->setup.name, what, count);
      sum += count;
    }
    ANANKE_CHECK(static_cast<int>(counts.size()) == size() && sum <= tensor.elements(),
                 "communicator {}: all_to_all's {} has {} counts with the sum {} for {} ranks and {} elements",
                 core_->setup.name, what, counts.size(), sum, size(), tensor.elements());
  };
  check("send", send, send_counts);
  check("receive", receive, receive_counts);
  ANANKE_CHECK(send.dtype == receive.dtype && !overlap(send, receive),
               "communicator {}: all_to_all needs `send` ({}) and `receive` ({}) of one type, apart in memory",
               core_->setup.name, name_of(send.dtype), name_of(receive.dtype));
  ANANKE_CHECK(size() > 1 || send_counts[0] == receive_counts[0],
               "communicator {}: all_to_all sends {} elements to itself and expects {}", core_->setup.name,
               send_counts[0], receive_counts[0]);
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

}  // namespace ananke
