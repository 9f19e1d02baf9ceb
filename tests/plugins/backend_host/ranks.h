// Ranks as threads, each with a device, a rendezvous and communicators of its own, for the tests of this folder.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "plugins/backend_host/gloo_transport.h"
#include "plugins/backend_host/host_communicator.h"
#include "plugins/backend_host/host_device.h"
#include "plugins/backend_host/shared_transport.h"
#include "plugins/backend_host/thread_transport.h"
#include "runtime/base/error.h"
#include "runtime/comm/local_rendezvous.h"
#include "tests/patience.h"

namespace ananke::testing {

enum class Wire { threads, shared, gloo };
inline const char* name_of(Wire wire) {
  return wire == Wire::threads ? "threads" : wire == Wire::shared ? "shared" : "gloo";
}

struct Rank {
  int rank = 0;
  int size = 1;
  Wire wire = Wire::threads;
  std::chrono::milliseconds deadline = test_patience;
  std::chrono::milliseconds delay{0};
  HostDevice device{"host"};
  GlooDevice gloo{""};
  std::unique_ptr<Rendezvous> rendezvous;

  Stream& compute() { return device.stream(Resource::compute); }
  std::unique_ptr<HostCommunicator> communicator(const std::string& name, std::vector<int> ranks = {}) {
    if (ranks.empty()) {
      ranks.resize(static_cast<std::size_t>(size));
      std::iota(ranks.begin(), ranks.end(), 0);
    }
    const int mine = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    std::unique_ptr<Transport> transport;
    if (ranks.size() > 1) {
      transport = wire == Wire::threads  ? seat(name, ranks, mine)
                  : wire == Wire::shared ? share(name, ranks, mine)
                                         : connect(name, ranks, mine);
    }
    return std::make_unique<HostCommunicator>(HostCommunicator::Setup{name, ranks, mine, delay}, std::move(transport),
                                              device.memory());
  }

 private:
  std::unique_ptr<Transport> seat(const std::string& name, const std::vector<int>& ranks, int mine) {
    std::string address = "0";
    if (mine == 0) address = std::to_string(reinterpret_cast<std::uintptr_t>(ThreadGroup::create(ranks, deadline)));
    address = rendezvous->exchange(name, ranks, address)[0];
    return reinterpret_cast<ThreadGroup*>(std::stoull(address))->take_seat(mine);
  }
  std::unique_ptr<Transport> share(const std::string& name, const std::vector<int>& ranks, int mine) {
    SharedGroup group(ranks, mine, deadline);
    auto transport = group.join(rendezvous->exchange(name + "/shared", ranks, group.address()));
    rendezvous->exchange(name + "/joined", ranks, "");
    return transport;
  }
  std::unique_ptr<Transport> connect(const std::string& name, const std::vector<int>& ranks, int mine) {
    const auto exchange = [&](const std::string& step, std::string blob) {
      return rendezvous->exchange(name + "/" + step, ranks, std::move(blob));
    };
    return gloo.connect({ranks, mine, test_patience, deadline, exchange}, device.memory());
  }
};

// Runs body(rank) as one thread per rank; what each threw ("kind: message", empty: nothing).
inline std::vector<std::string> run_ranks(int size, Wire wire, const std::function<void(Rank&)>& body,
                                          std::chrono::milliseconds deadline = test_patience) {
  auto world = LocalWorld::create(size, test_patience);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        Rank rank;
        rank.rank = r;
        rank.size = size;
        rank.wire = wire;
        rank.deadline = deadline;
        rank.rendezvous = world->join(r);
        body(rank);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(r)] = fmt::format("{}: {}", ananke::name_of(error.kind()), error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace ananke::testing
