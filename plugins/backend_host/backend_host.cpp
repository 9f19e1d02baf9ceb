#include "plugins/backend_host/backend_host.h"

#include <cblas.h>
#include <sched.h>

#include <algorithm>

#include "ananke/site.pb.h"
#include "plugins/backend_host/backend_host.pb.h"
#include "plugins/backend_host/host_communicator.h"
#include "plugins/backend_host/operators/host_operators.h"
#include "plugins/backend_host/process_identity.h"
#include "plugins/backend_host/thread_pool.h"
#include "plugins/backend_host/thread_transport.h"
#include "runtime/base/error.h"
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
      threads_(choose_threads(context, config)),
      transport_(config.transport()),
      network_interface_(config.network_interface().empty() ? context.site.network_interface()
                                                            : config.network_interface()),
      delay_(parse_duration(config.communication_delay())),
      exchange_deadline_(parse_duration(context.site.deadlines().exchange())),
      step_deadline_(parse_duration(context.site.deadlines().step())),
      device_(describe(threads_)) {}

BackendHost::~BackendHost() = default;

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

std::unique_ptr<Transport> BackendHost::make_transport(const Group& group, Rendezvous& rendezvous) {
  if (transport_ == plugin::BackendHost::GLOO) return connect(group, rendezvous);
  // Everybody says where it lives; the first also offers a meeting place in its memory.
  ThreadGroup* offered = group.rank == 0 ? ThreadGroup::create(group.ranks, step_deadline_) : nullptr;
  try {
    const std::string blob =
        fmt::format("{} {}", process_identity(), offered ? reinterpret_cast<std::uintptr_t>(offered) : 0);
    const auto blobs = rendezvous.exchange(group.key + "/processes", group.ranks, blob);
    if (auto seat = take_seat(group, blobs)) return seat;
  } catch (...) {
    if (offered) offered->discard();
    throw;
  }
  if (offered) offered->discard();
  return connect(group, rendezvous);
}

// Null where Gloo is to be used.
std::unique_ptr<Transport> BackendHost::take_seat(const Group& group, const std::vector<std::string>& blobs) {
  const auto process = [](const std::string& blob) { return blob.substr(0, blob.find(' ')); };
  for (std::size_t p = 0; p < blobs.size(); ++p) {
    if (process(blobs[p]) == process(blobs[0])) continue;
    if (transport_ != plugin::BackendHost::THREADS) return nullptr;
    fail(
        ErrorKind::config,
        "backend_host: transport THREADS is for ranks that are threads of one process, but communicator {} has rank {} "
        "in process {} and rank {} in process {}; use AUTO or GLOO",
        group.name, group.ranks[0], process(blobs[0]), group.ranks[p], process(blobs[p]));
  }
  const auto address = std::stoull(blobs[0].substr(blobs[0].find(' ') + 1));
  return reinterpret_cast<ThreadGroup*>(static_cast<std::uintptr_t>(address))->take_seat(group.rank);
}

std::unique_ptr<Transport> BackendHost::connect(const Group& group, Rendezvous& rendezvous) {
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
