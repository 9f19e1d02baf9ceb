// The backend for machines without an accelerator.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/backend_host/gloo_transport.h"
#include "plugins/backend_host/host_device.h"
#include "runtime/roles/backend.h"

namespace ananke {

class ThreadPool;

namespace host {
class HostOperators;
}
namespace plugin {
class BackendHost;  // the config message
}

class BackendHost final : public Backend {
 public:
  BackendHost(const RoleContext& context, const plugin::BackendHost& config);
  ~BackendHost() override;

  std::string determinism() const override { return "all sums have one order"; }
  bool computes_on_host() const override { return true; }
  std::vector<PlanLine> plan(std::span<const CollectiveUse> largest) const override;
  std::vector<PlanLine> in_use() override;
  Device& device() override;
  const OperatorSet& operators() override;
  std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                  Rendezvous& rendezvous) override;
  int threads() const { return threads_; }

 private:
  struct Group;
  std::unique_ptr<Transport> make_transport(const Group& group, Rendezvous& rendezvous);
  std::unique_ptr<Transport> by_threads(const Group& group, Rendezvous& rendezvous);
  std::unique_ptr<Transport> by_shared_memory(const Group& group, Rendezvous& rendezvous);
  std::unique_ptr<Transport> by_gloo(const Group& group, Rendezvous& rendezvous);
  std::string number(const Group& group);

  const int rank_;
  const MeshShape mesh_;
  const int node_ranks_;
  const int threads_;
  const int transport_;  // plugin::BackendHost::Transport
  const std::string network_interface_;
  const std::chrono::milliseconds delay_, exchange_deadline_, step_deadline_;
  std::mutex mutex_;
  // In this order: what is on the device's streams uses the operators, and these the pool.
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<host::HostOperators> operators_;
  HostDevice device_;
  std::unique_ptr<GlooDevice> gloo_;
  std::map<std::string, int> made_;  // communicators by name and members, for keys that serve once
  const std::shared_ptr<std::atomic<std::uint64_t>> outboxes_ = std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace ananke
