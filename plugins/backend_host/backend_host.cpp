#include "plugins/backend_host/backend_host.h"

#include <cblas.h>
#include <sched.h>

#include <algorithm>

#include "ananke/site.pb.h"
#include "plugins/backend_host/backend_host.pb.h"
#include "plugins/backend_host/host_communicator.h"
#include "plugins/backend_host/memory_plan.h"
#include "plugins/backend_host/operators/host_operators.h"
#include "plugins/backend_host/process_identity.h"
#include "plugins/backend_host/shared_transport.h"
#include "plugins/backend_host/thread_pool.h"
#include "plugins/backend_host/thread_transport.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/process.h"
#include "runtime/base/units.h"
#include "runtime/comm/exchange_table.h"
#include "runtime/plugin/descriptor.h"

namespace ananke {
namespace {

constexpr std::size_t most_ranks = 64;

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int choose_threads(const RoleContext& context, const plugin::BackendHost& config) {
  if (config.threads() != 0) return static_cast<int>(config.threads());
  return std::max(1, usable_cores() / std::max(1, context.node_ranks));
}

std::string describe(int threads) {
  const std::string version = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
  const auto end = version.find(' ', version.find(' ') + 1);
  return fmt::format("host, {} thread{}, {} ({})", threads, threads == 1 ? "" : "s", version.substr(0, end),
                     openblas_get_corename());
}

}  // namespace

struct BackendHost::Group {
  std::string name;
  std::vector<int> ranks;  // world ranks
  int rank = 0;            // own, within the group
  std::string key;         // prefix of the group's exchanges
};

BackendHost::BackendHost(const RoleContext& context, const plugin::BackendHost& config)
    : rank_(context.rank),
      mesh_(context.mesh),
      node_ranks_(context.node_ranks),
      threads_(choose_threads(context, config)),
      transport_(config.transport()),
      network_interface_(config.network_interface().empty() ? context.site.network_interface()
                                                            : config.network_interface()),
      delay_(parse_duration(config.communication_delay())),
      exchange_deadline_(parse_duration(context.site.deadlines().exchange())),
      step_deadline_(parse_duration(context.site.deadlines().step())),
      device_(describe(threads_)) {}

BackendHost::~BackendHost() = default;

std::vector<PlanLine> BackendHost::plan(std::span<const CollectiveUse> largest) const {
  using Config = plugin::BackendHost;
  const std::pair<const char*, int> axes[] = {
      {"world", mesh_.ranks()},       {"shard", mesh_.shard},
      {"replicate", mesh_.replicate}, {"expert_shard", mesh_.expert_shard()},
      {"expert", mesh_.expert},       {"node", std::min(mesh_.shard, node_ranks_)}};
  // Ranks of a job are processes. Groups of ranks on several nodes take Gloo.
  const host::Way here = transport_ == Config::GLOO || node_ranks_ < mesh_.ranks() ? host::Way::gloo
                         : transport_ == Config::THREADS                           ? host::Way::threads
                                                                                   : host::Way::shared_memory;
  std::vector<PlanLine> lines = {host::process_memory(threads_, here == host::Way::gloo)};
  for (const auto& [name, ranks] : axes) {
    std::vector<CollectiveUse> uses;
    std::copy_if(largest.begin(), largest.end(), std::back_inserter(uses),
                 [&](const CollectiveUse& use) { return use.axis == name; });
    for (PlanLine& line : host::collective_memory(uses, {ranks, here})) lines.push_back(std::move(line));
  }
  return lines;
}

// Of what the process has beside its arena, which is anonymous memory as well.
std::vector<PlanLine> BackendHost::in_use() {
  std::vector<PlanLine> lines;
  if (const std::uint64_t outboxes = outboxes_->load(std::memory_order_relaxed); outboxes > 0) {
    lines.push_back({"shared outboxes", Place::host, outboxes});
  }
  const std::uint64_t anonymous = anonymous_memory(), arena = device_.memory().used();
  if (anonymous > arena) lines.push_back({"process", Place::host, anonymous - arena});
  return lines;
}

Device& BackendHost::device() { return device_; }

const OperatorSet& BackendHost::operators() {
  std::lock_guard lock(mutex_);
  if (!operators_) {
    pool_ = std::make_unique<ThreadPool>(threads_);
    operators_ = std::make_unique<host::HostOperators>(*pool_);
  }
  return operators_->set();
}

std::unique_ptr<Communicator> BackendHost::make_communicator(const std::string& name, std::span<const int> ranks,
                                                             Rendezvous& rendezvous) {
  Group group{name, {ranks.begin(), ranks.end()}, 0, ""};
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  ANANKE_CHECK(own != ranks.end() && std::is_sorted(ranks.begin(), ranks.end(), std::less_equal<>()),
               "communicator {} over [{}] on rank {}: ascending ranks, own included", name, fmt::join(ranks, ", "),
               rank_);
  group.rank = static_cast<int>(own - ranks.begin());
  if (ranks.size() > most_ranks) {
    fail(ErrorKind::config,
         "backend_host connects every rank of a group with every other, at most {} ranks; communicator {} has {}: use "
         "fewer ranks, or smaller axes by another mesh",
         most_ranks, name, ranks.size());
  }
  group.key = number(group);
  auto transport = ranks.size() > 1 ? make_transport(group, rendezvous) : nullptr;
  return std::make_unique<HostCommunicator>(HostCommunicator::Setup{name, group.ranks, group.rank, delay_},
                                            std::move(transport), device_.memory());
}

// A key that all members arrive at and that serves once: members call for their groups in one order.
std::string BackendHost::number(const Group& group) {
  const std::string key = fmt::format("backend_host/{}/{}", group.name, format_ranks(group.ranks));
  std::lock_guard lock(mutex_);
  return fmt::format("{}/{}", key, made_[key]++);
}

// Every rank comes to the same decisions from the same answers.
std::unique_ptr<Transport> BackendHost::make_transport(const Group& group, Rendezvous& rendezvous) {
  using Config = plugin::BackendHost;
  if (transport_ == Config::GLOO) return by_gloo(group, rendezvous);
  if (transport_ != Config::SHARED_MEMORY) {
    const auto processes = rendezvous.exchange(group.key + "/processes", group.ranks, process_identity());
    const auto other = std::find_if(processes.begin(), processes.end(), [&](auto& p) { return p != processes[0]; });
    if (other == processes.end()) return by_threads(group, rendezvous);
    if (transport_ == Config::THREADS) {
      fail(ErrorKind::config,
           "backend_host: transport THREADS is for ranks that are threads of one process, but communicator {} has rank "
           "{} in process {} and rank {} in process {}; use AUTO, SHARED_MEMORY or GLOO",
           group.name, group.ranks[0], processes[0], group.ranks[static_cast<std::size_t>(other - processes.begin())],
           *other);
    }
  }
  if (auto shared = by_shared_memory(group, rendezvous)) return shared;
  return by_gloo(group, rendezvous);
}

std::unique_ptr<Transport> BackendHost::by_threads(const Group& group, Rendezvous& rendezvous) {
  // The first rank makes the meeting place; its address is good for all, as they are in one process.
  ThreadGroup* made = group.rank == 0 ? ThreadGroup::create(group.ranks, step_deadline_) : nullptr;
  std::vector<std::string> addresses;
  try {
    addresses = rendezvous.exchange(group.key + "/threads", group.ranks,
                                    std::to_string(reinterpret_cast<std::uintptr_t>(made)));
  } catch (...) {
    if (made) made->discard();
    throw;
  }
  return reinterpret_cast<ThreadGroup*>(std::stoull(addresses[0]))->take_seat(group.rank);
}

// Null, on all ranks, where one of them cannot.
std::unique_ptr<Transport> BackendHost::by_shared_memory(const Group& group, Rendezvous& rendezvous) {
  std::unique_ptr<SharedGroup> shared;
  std::unique_ptr<Transport> transport;
  std::string address, trouble;
  const auto attempt = [&](const auto& action) {
    try {
      if (trouble.empty()) action();
    } catch (const Error& error) {
      trouble = error.what();
    }
  };
  attempt([&] {
    shared = std::make_unique<SharedGroup>(group.ranks, group.rank, step_deadline_, outboxes_);
    address = shared->address();
  });
  const auto addresses = rendezvous.exchange(group.key + "/shared", group.ranks, address);
  attempt([&] { transport = shared->join(addresses); });
  const auto troubles = rendezvous.exchange(group.key + "/joined", group.ranks, trouble);
  for (std::size_t p = 0; p < troubles.size(); ++p) {
    if (troubles[p].empty()) continue;
    const auto reason = fmt::format("rank {}: {}", group.ranks[p], troubles[p]);
    if (transport_ == plugin::BackendHost::SHARED_MEMORY) {
      fail(ErrorKind::config,
           "backend_host: transport SHARED_MEMORY does not fit communicator {}: {}; use AUTO or GLOO", group.name,
           reason);
    }
    log_info("communicator {} takes Gloo, not shared memory: {}", group.name, reason);
    return nullptr;
  }
  return transport;
}

std::unique_ptr<Transport> BackendHost::by_gloo(const Group& group, Rendezvous& rendezvous) {
  {
    std::lock_guard lock(mutex_);
    if (!gloo_) gloo_ = std::make_unique<GlooDevice>(network_interface_);
  }
  const auto exchange = [&](const std::string& step, std::string blob) {
    return rendezvous.exchange(group.key + "/" + step, group.ranks, std::move(blob));
  };
  return gloo_->connect({group.ranks, group.rank, exchange_deadline_, step_deadline_, exchange}, device_.memory());
}

ANANKE_PLUGIN(Backend, BackendHost, plugin::BackendHost);

}  // namespace ananke
