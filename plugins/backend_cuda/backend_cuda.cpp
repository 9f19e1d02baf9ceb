#include "plugins/backend_cuda/backend_cuda.h"

#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/environment.h"
#include "plugins/backend_cuda/memory_plan.h"
#include "plugins/backend_cuda/nccl_communicator.h"
#include "plugins/backend_cuda/operators/cuda_operators.h"
#include "plugins/backend_cuda/peers.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/process.h"
#include "runtime/base/units.h"
#include "runtime/comm/exchange_table.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/compute_type.h"

namespace ananke {
namespace {

using namespace cuda;

RankPlace place_of(const RoleContext& context) {
  RankPlace place;
  place.rank = context.rank;
  place.ranks = context.mesh.ranks();
  place.local_ranks = std::max(1, context.node_ranks);
  place.local_rank = context.local_rank >= 0 ? context.local_rank : context.rank % place.local_ranks;
  return place;
}

AttentionChoice choice_of(const plugin::BackendCuda& config) {
  switch (config.attention()) {
    case plugin::BackendCuda::OWN: return AttentionChoice::own;
    case plugin::BackendCuda::CUDNN: return AttentionChoice::cudnn;
    default: return AttentionChoice::automatic;
  }
}

GroupedKernels grouped_of(const plugin::BackendCuda& config) {
  return config.grouped_products() == plugin::BackendCuda::SM90 ? GroupedKernels::sm90 : GroupedKernels::cublaslt;
}

// Host memory, as blocks.
class HostBlocks final : public BlockSource {
 public:
  void* reserve(std::size_t bytes) override { return std::aligned_alloc(256, bytes); }
  void unreserve(void* block) noexcept override { std::free(block); }
  void clear(void* piece, std::size_t bytes) override { std::memset(piece, 0, bytes); }
  const char* name() const override { return "host memory"; }
  std::string situation() const override { return ""; }
};

std::string new_nccl_id() {
  ncclUniqueId id{};
  check(ncclGetUniqueId(&id), "make the id of an NCCL communicator");
  return {reinterpret_cast<const char*>(&id), sizeof id};
}

}  // namespace

struct BackendCuda::HostArenas {
  HostBlocks blocks;
  BlockMemory source{blocks, std::size_t{2} << 20};
  BlockMemory pinned_source{blocks, std::size_t{2} << 20};
  Arena memory{source}, pinned{pinned_source};
};

BackendCuda::BackendCuda(const RoleContext& context, const plugin::BackendCuda& config)
    : config_(config),
      place_(place_of(context)),
      mesh_(context.mesh),
      widest_(compute_type(context.job)),
      deterministic_(context.job.training().deterministic()),
      dry_(context.dry),
      exchange_deadline_(parse_duration(context.site.deadlines().exchange())),
      step_deadline_(parse_duration(context.site.deadlines().step())) {
  for (const auto& limit : config_.communicator()) {
    if (limit.max_ctas() > 0 && limit.min_ctas() > limit.max_ctas()) {
      fail(ErrorKind::config, "backend_cuda: communicator {} has min_ctas {} above max_ctas {}", limit.name(),
           limit.min_ctas(), limit.max_ctas());
    }
  }
  if (deterministic_ && config_.nvlink_sharp()) {
    fail(ErrorKind::config,
         "training.deterministic: backend_cuda cannot promise the same bits with nvlink_sharp, whose sums are in an "
         "order of the switches' own; remove one of the two");
  }
  if (dry_) return;
  prepare_environment({.eager_modules = config_.module_loading() == plugin::BackendCuda::EAGER,
                       .nvlink_sharp = config_.nvlink_sharp(),
                       .all_to_all_ctas = static_cast<int>(config_.all_to_all_ctas()),
                       .network_interface = context.site.network_interface()});
}

BackendCuda::~BackendCuda() {
  if (!device_) return;
  for (int i = 0; i < resource_count; ++i) {
    try {
      device_->stream(static_cast<Resource>(i)).synchronize();
    } catch (...) {  // whoever ran the step has been told
    }
  }
  device_->failure()->look_by(this, nullptr);
  device_->count_reads_of(nullptr);
}

std::string BackendCuda::determinism() const {
  return fmt::format("kernels and NCCL's collectives add in one order on the same nodes; attention by {}",
                     operators_ && !dry_ ? operators_->attention_kernels() : "kernels that do");
}

CudaDevice& BackendCuda::open() {
  std::lock_guard lock(mutex_);
  if (device_) return *device_;
  ANANKE_CHECK(!dry_, "a dry run opens a device");
  check(ncclGetVersion(&nccl_), "ask NCCL for its version");
  if (const std::string remark = judge_nccl(nccl_, NCCL_VERSION_CODE); !remark.empty()) log_warning("{}", remark);
  const std::vector<VisibleDevice> visible = visible_devices();
  const int device = choose_device(visible, {config_.device().begin(), config_.device().end()}, place_);
  const DeviceFacts facts = DeviceFacts::of(device);
  if (facts.major < 9) {
    fail(ErrorKind::config,
         "backend_cuda is made for compute capability 9.0 (H100, H200, GH200); device {} of rank {} is a {} with {}.{}",
         visible[static_cast<std::size_t>(device)].uuid, place_.rank, facts.name, facts.major, facts.minor);
  }
  device_ = std::make_unique<CudaDevice>(CudaDevice::Setup{device, visible[static_cast<std::size_t>(device)].uuid,
                                                           parse_bytes(config_.memory_block()),
                                                           parse_bytes(config_.pinned_block())});
  log_info("NCCL {}", nccl_version_text(nccl_));
  return *device_;
}

Device& BackendCuda::device() { return open(); }

PlannedDevice BackendCuda::planned_device() const {
  return {.eager_modules = config_.module_loading() == plugin::BackendCuda::EAGER,
          .memory_block = parse_bytes(config_.memory_block()),
          .pinned_block = parse_bytes(config_.pinned_block())};
}

// What the operators hold they have taken when they were made.
std::vector<PlanLine> BackendCuda::plan(std::span<const CollectiveUse>) const {
  PlannedDevice planned = planned_device();
  for (const int ranks : {mesh_.ranks(), mesh_.shard, mesh_.replicate, mesh_.expert > 1 ? mesh_.expert_shard() : 1,
                          mesh_.expert, std::min(mesh_.shard, place_.local_ranks)}) {
    planned.communicators += ranks > 1 ? 1 : 0;
  }
  std::vector<PlanLine> lines = device_overheads(planned);
  if (config_.direct_exchange() && planned.communicators > 0) {
    const auto communicators = static_cast<std::uint64_t>(planned.communicators);
    lines.push_back({PeerExchange::purpose, Place::device, communicators * PeerExchange::device_bytes});
    lines.push_back(
        {std::string(PeerExchange::purpose) + " (host)", Place::host, communicators * PeerExchange::host_bytes});
  }
  const auto add = [&](const Arena& arena, Place place) {
    for (const Arena::Line& line : arena.ledger()) {
      if (line.purpose.starts_with("operators") || line.purpose == "cuBLASLt workspace") {
        lines.push_back({line.purpose, place, line.bytes});
      }
    }
  };
  if (host_arenas_) add(host_arenas_->memory, Place::device);
  if (host_arenas_) add(host_arenas_->pinned, Place::host);
  if (device_) add(device_->memory(), Place::device);
  if (device_) add(device_->host_memory(), Place::host);
  return lines;
}

// As if nobody else used the device.
std::vector<PlanLine> BackendCuda::in_use() {
  const DeviceRoom now = *room();
  const std::uint64_t reserved = device_->memory_numbers().reserved, used = device_->memory().used();
  const std::uint64_t taken = now.total - now.free;
  return {{context_purpose, Place::device, taken - std::min(taken, reserved)},
          {ends_purpose, Place::device, reserved - std::min(reserved, used)},
          {"process", Place::host, anonymous_memory()}};
}

std::optional<DeviceRoom> BackendCuda::room() {
  CudaDevice& device = open();
  use_device(device.facts().device);
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "ask the device for its free memory");
  DeviceRoom room{device.uuid(), free, total};
  for (const PlanLine& line : device_overheads(planned_device())) {  // all but NCCL's
    if (line.purpose == context_purpose) room.taken += line.bytes;
  }
  for (const Arena::Line& line : device.memory().ledger()) room.taken += line.bytes;  // the operators' pieces
  return room;
}

const OperatorSet& BackendCuda::operators() {
  if (operators_) return operators_->set();
  if (dry_) {
    host_arenas_ = std::make_unique<HostArenas>();
    operators_ = std::make_unique<CudaOperators>(DeviceFacts::expected(), host_arenas_->memory, host_arenas_->pinned,
                                                 widest_, choice_of(config_), deterministic_, grouped_of(config_));
    return operators_->set();
  }
  CudaDevice& device = open();
  use_device(device.facts().device);
  operators_ = std::make_unique<CudaOperators>(device.facts(), device.memory(), device.host_memory(), widest_,
                                               choice_of(config_), deterministic_, grouped_of(config_));
  device.failure()->look_by(this, [&operators = *operators_] { operators.check(); });
  device.count_reads_of([&operators = *operators_] { return operators.reads(); });
  return operators_->set();
}

void BackendCuda::trace(Trace* trace) {
  if (!trace_ && trace) trace_ = std::make_unique<DeviceTrace>(open());
  if (trace) {
    trace_->begin(*trace);
  } else if (trace_) {
    trace_->end();
  }
}

std::unique_ptr<Communicator> BackendCuda::make_communicator(const std::string& name, std::span<const int> ranks,
                                                             Rendezvous& rendezvous) {
  const auto own = std::find(ranks.begin(), ranks.end(), place_.rank);
  ANANKE_CHECK(own != ranks.end() && std::is_sorted(ranks.begin(), ranks.end(), std::less_equal<>()),
               "communicator {} over {} on rank {}: ascending ranks, own included", name, format_ranks(ranks),
               place_.rank);
  CudaDevice& device = open();
  NcclCommunicator::Setup setup;
  setup.name = name;
  setup.ranks.assign(ranks.begin(), ranks.end());
  setup.rank = static_cast<int>(own - ranks.begin());
  setup.connect_deadline = exchange_deadline_;
  setup.step_deadline = step_deadline_;
  setup.share = config_.direct_exchange();
  setup.row_blocks = static_cast<int>(config_.exchange_blocks());
  setup.sum_blocks = static_cast<int>(config_.sum_blocks());
  for (const auto& limit : config_.communicator()) {
    if (limit.name() != name) continue;
    setup.min_ctas = static_cast<int>(limit.min_ctas());
    setup.max_ctas = static_cast<int>(limit.max_ctas());
  }
  std::unique_ptr<Peers> peers;
  if (ranks.size() > 1) {
    PeerCard card{this_process(), device.uuid(), nccl_, setup.rank == 0 ? new_nccl_id() : ""};
    peers = std::make_unique<Peers>(setup.ranks, setup.rank, std::move(card), number(name, ranks), rendezvous);
  }
  return std::make_unique<NcclCommunicator>(std::move(setup), std::move(peers), device, watch_);
}

// A key that all members arrive at and that serves once: members call for their groups in one order.
std::string BackendCuda::number(const std::string& name, std::span<const int> ranks) {
  const std::string key = fmt::format("backend_cuda/{}/{}", name, format_ranks(ranks));
  std::lock_guard lock(mutex_);
  return fmt::format("{}/{}", key, made_[key]++);
}

ANANKE_PLUGIN(Backend, BackendCuda, plugin::BackendCuda);

}  // namespace ananke
