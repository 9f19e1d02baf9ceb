// Parameters plugin: fully sharded data parallelism. Dense units are cut over the shard axis, units of experts over the
// expert_shard axis; copies over the replicate axis.
#include <algorithm>
#include <utility>

#include "plugins/fsdp/fsdp.pb.h"
#include "plugins/fsdp/gatherer.h"
#include "plugins/fsdp/owned.h"
#include "plugins/fsdp/reducer.h"
#include "plugins/fsdp/slots.h"
#include "runtime/base/log.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/compute_type.h"
#include "runtime/roles/parameters.h"

namespace ananke {
namespace {

using fsdp::Gatherer;
using fsdp::Reducer;
using fsdp::Slots;

// Everything that is allocated.
struct Layout {
  fsdp::OwnedRanges owned;   // in the weights, and in their gradients
  Slots weights, gradients;  // empty where no unit has a home
  fsdp::ReduceMemory reduce;
  fsdp::GatherMemory gather;
};

int count_blocks(std::uint32_t asked, const ParameterTable& table) {
  return static_cast<int>(std::min<std::uint64_t>(asked, table.blocks().size()));
}

Layout make_layout(const ParameterTable& table, const Placement& placement, const MeshCoordinates& at,
                   const plugin::Fsdp& config, int node_ranks, DType compute, DType stored) {
  Layout layout;
  layout.owned = fsdp::owned_ranges(table, placement, at, stored);
  const bool cut = placement.mesh().shard > 1;
  if (cut || compute != stored) {
    const int all = static_cast<int>(table.blocks().size());
    layout.weights = fsdp::assign_slots(
        table, placement, config.reshard_after_forward() ? count_blocks(config.prefetch_blocks(), table) : all, compute,
        stored);
  }
  if (cut || stored != DType::f32) {
    layout.gradients =
        fsdp::assign_slots(table, placement, count_blocks(config.reduce_blocks(), table), DType::f32, stored);
    layout.reduce = fsdp::reduce_memory(table, placement, config, stored);
  }
  if (cut) layout.gather = fsdp::gather_memory(table, placement, at, config, node_ranks, compute, stored);
  return layout;
}

// What is stored in bf16 travels as it is: a wire of FP32, the default, would carry zeros beside it.
plugin::Fsdp for_stored(plugin::Fsdp config, DType stored) {
  if (stored == DType::f32) return config;
  const auto of = [](const char* field, plugin::Fsdp::Gather format) {
    if (format == plugin::Fsdp::FP8_E4M3) {
      fail(ErrorKind::config,
           "fsdp: {} is FP8_E4M3, which is made of f32 weights, but training.weights is BF16; set {}: BF16, or remove "
           "training.weights",
           field, field);
    }
    return plugin::Fsdp::BF16;
  };
  config.set_gather_dense(of("gather_dense", config.gather_dense()));
  config.set_gather_experts(of("gather_experts", config.gather_experts()));
  return config;
}

std::size_t bytes_of(std::int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(float); }

class Fsdp final : public Parameters {
 public:
  Fsdp(const RoleContext& context, const plugin::Fsdp& config)
      : config_(for_stored(config, stored_type(context.job))),
        compute_type_(compute_type(context.job)),
        stored_type_(stored_type(context.job)),
        rank_(context.rank),
        node_ranks_(std::min(context.node_ranks, context.mesh.shard)),
        at_(coordinates(context.mesh, context.rank)) {
    if (config.node_copy() && !config.reshard_after_forward()) {
      fail(ErrorKind::config,
           "fsdp: node_copy is set, but reshard_after_forward is not, so nothing is gathered a second time; remove one "
           "of the two");
    }
  }
  ~Fsdp() override { wait_quietly(); }

  bool gathers_into(DType type) const override { return type == DType::f32 || type == DType::bf16; }
  bool stores_in(DType type) const override { return type == DType::f32 || type == DType::bf16; }

  std::vector<PlanLine> plan(const ParameterTable& table, const Placement& placement) const override {
    const Layout layout = make_layout(table, placement, at_, config_, node_ranks_, compute_type_, stored_type_);
    std::vector<PlanLine> lines;
    const auto add_bytes = [&](const char* purpose, std::int64_t bytes) {
      if (bytes > 0) lines.push_back({purpose, Place::device, static_cast<std::uint64_t>(bytes)});
    };
    const auto add = [&](const char* purpose, std::int64_t elements) {
      if (elements > 0) lines.push_back({purpose, Place::device, bytes_of(elements)});
    };
    add_bytes("weights", layout.owned.bytes);
    add_bytes("gradients", layout.owned.bytes);
    add("gather slots", layout.weights.elements);
    add("gradient slots", layout.gradients.elements + layout.reduce.landing);
    add_bytes("gather wire", layout.gather.staging + layout.gather.node_staging);
    add_bytes("node copies", layout.gather.node_copies);
    add_bytes("fp8 tables", layout.gather.tables);
    if (layout.gather.tables > 0) {
      lines.push_back(
          {"fp8 tables (host)", Place::host, static_cast<std::uint64_t>(layout.gather.tables), Lifetime::start});
    }
    add_bytes("reduce wire", layout.reduce.chunks);
    return lines;
  }

  std::vector<CollectiveUse> exchanges(const ParameterTable& table, const Placement& placement) const override {
    std::vector<CollectiveUse> uses = fsdp::gather_exchanges(table, placement, at_, config_, node_ranks_);
    for (CollectiveUse& use : fsdp::reduce_exchanges(table, placement, at_, config_, stored_type_)) {
      uses.push_back(std::move(use));
    }
    return uses;
  }

  void start(const StartContext& context) override;
  std::span<const OwnedFragment> fragments() override { return fragments_; }

  void begin(const Schedule& schedule) override {
    ANANKE_CHECK(!schedule_, "a schedule begins before finish() of the one before");
    schedule_ = &schedule;
    // Gathers read what the optimizer wrote; reductions overwrite what it read.
    compute_->record(*turn_);
    network_->wait(*turn_);
    reducer_->begin(schedule);
    if (gatherer_) gatherer_->begin(schedule);
  }

  UnitViews acquire(int item, int unit) override {
    const UnitUse& use = find_use(item, unit);
    UnitViews views;
    if (use.needs_weights) views.weights = gatherer_ ? gatherer_->acquire(item, unit) : whole_[at(unit)];
    if ((*schedule_)[at(item)].phase != Phase::forward) views.gradient = reducer_->acquire(unit);
    return views;
  }

  void release(int item, int unit) override {
    if (find_use(item, unit).needs_weights && gatherer_) gatherer_->release(item, unit);
  }

  void reduce(int item, int unit) override {
    const UnitUse& use = find_use(item, unit);
    ANANKE_CHECK((*schedule_)[at(item)].phase != Phase::forward,
                 "item {} is forward only and has no gradient to reduce", item);
    reducer_->reduce(item, use);
  }

  void finish() override {
    ANANKE_CHECK(schedule_, "finish() without begin()");
    if (gatherer_) gatherer_->finish();
    reducer_->finish();
    network_->record(*turn_);
    compute_->wait(*turn_);
    schedule_ = nullptr;
  }

  void updated() override {
    ANANKE_CHECK(!schedule_, "weights change in the middle of a schedule");
    if (gatherer_) gatherer_->drop();
  }

  Traffic traffic() const override {
    Traffic lines = gatherer_ ? gatherer_->traffic() : Traffic{};
    for (TrafficLine& line : reducer_ ? reducer_->traffic() : Traffic{}) lines.push_back(std::move(line));
    return lines;
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  const UnitUse& find_use(int item, int unit) const {
    ANANKE_CHECK(schedule_, "item {} outside begin() and finish()", item);
    ANANKE_CHECK(item >= 0 && at(item) < schedule_->size(), "item {} of a schedule of {}", item, schedule_->size());
    for (const UnitUse& use : (*schedule_)[at(item)].units) {
      if (use.unit == unit) return use;
    }
    fail(ErrorKind::internal, "item {} does not use unit {}", item, unit);
  }

  // Buffers must outlive the work on them, also when a step ends by an error.
  void wait_quietly() noexcept {
    for (Stream* stream : {network_, nvlink_, compute_}) {
      try {
        if (stream) stream->synchronize();
      } catch (...) {  // whoever ran the step has been told
      }
    }
  }

  plugin::Fsdp config_;
  DType compute_type_;  // of wire segments in use
  DType stored_type_;   // of owned ones
  int rank_;            // in the world
  int node_ranks_;      // of the shard axis on this node, as far as can be known before start
  MeshCoordinates at_;
  Stream* compute_ = nullptr;
  Stream* network_ = nullptr;
  Stream* nvlink_ = nullptr;
  std::unique_ptr<Event> turn_;  // from one stream to the other at begin() and finish()
  Buffer weights_, gradients_, gather_slots_, gradient_slots_, gather_wire_, node_copies_, tables_, reduce_wire_;
  std::vector<SegmentViews> masters_;
  std::vector<SegmentViews> whole_;  // the masters of units that are not cut
  std::vector<OwnedFragment> fragments_;
  std::unique_ptr<Gatherer> gatherer_;  // none where units are used as they are owned
  std::unique_ptr<Reducer> reducer_;
  const Schedule* schedule_ = nullptr;
};

void Fsdp::start(const StartContext& context) {
  const MeshShape& mesh = context.placement.mesh();
  ANANKE_CHECK(context.shard.size() == mesh.shard && context.replicate.size() == mesh.replicate &&
                   context.expert_shard.size() == mesh.expert_shard(),
               "communicators of {}, {} and {} ranks for mesh {}", context.replicate.size(), context.shard.size(),
               context.expert_shard.size(), to_string(mesh));
  ANANKE_CHECK(!reducer_, "fsdp starts twice");
  Device& device = context.backend.device();
  compute_ = &device.stream(Resource::compute);
  network_ = &device.stream(Resource::network);
  nvlink_ = &device.stream(Resource::nvlink);
  turn_ = device.make_event();

  if (config_.node_copy() && mesh.shard > 1 && context.node.size() == 1) {
    log_warning(
        "fsdp: node_copy is set, but this rank's node holds no other of the {} ranks of the shard axis, or nodes hold "
        "unequal numbers of them; no copy is kept, and weights are gathered twice over the network",
        mesh.shard);
  }
  Layout layout =
      make_layout(context.table, context.placement, at_, config_, context.node.size(), compute_type_, stored_type_);
  Arena& memory = device.memory();
  const auto allocate = [&](std::int64_t bytes, const char* purpose) {
    return memory.allocate(static_cast<std::size_t>(bytes), purpose);
  };
  weights_ = allocate(layout.owned.bytes, "weights");
  gradients_ = allocate(layout.owned.bytes, "gradients");
  const std::int64_t gradient_slots = layout.gradients.elements + layout.reduce.landing;
  gather_slots_ = memory.allocate(bytes_of(layout.weights.elements), "gather slots");
  gradient_slots_ = memory.allocate(bytes_of(gradient_slots), "gradient slots");
  gather_wire_ = allocate(layout.gather.staging + layout.gather.node_staging, "gather wire");
  node_copies_ = allocate(layout.gather.node_copies, "node copies");
  tables_ = allocate(layout.gather.tables, "fp8 tables");
  reduce_wire_ = allocate(layout.reduce.chunks, "reduce wire");
  for (const Buffer* buffer : {&weights_, &gradients_}) device.zero(*compute_, buffer->data(), buffer->bytes());
  compute_->synchronize();

  std::vector<SegmentViews> owned;
  for (std::size_t unit = 0; unit < layout.owned.begin.size(); ++unit) {
    const UnitPlacement& place = context.placement.unit(static_cast<int>(unit), at_);
    masters_.push_back(fsdp::owned_in(weights_, layout.owned.begin[unit], place, stored_type_));
    whole_.push_back(place.ranks == 1 ? masters_.back() : SegmentViews{});
    owned.push_back(fsdp::owned_in(gradients_, layout.owned.begin[unit], place, stored_type_));
  }
  for (const Fragment& f : context.placement.fragments(rank_)) {
    fragments_.push_back({f, fsdp::fragment_in(masters_[at(f.unit)], f), fsdp::fragment_in(owned[at(f.unit)], f)});
  }
  if (mesh.shard > 1 || compute_type_ != stored_type_) {
    const auto bytes = [](const Buffer& buffer, std::int64_t count, std::int64_t begin = 0) {
      return count > 0 ? buffer.view(DType::u8, {count}, static_cast<std::size_t>(begin)) : TensorView{};
    };
    const fsdp::GatherMemory& sizes = layout.gather;
    const Gatherer::Regions regions{.homes = gather_slots_.view(DType::f32, {layout.weights.elements}),
                                    .staging = bytes(gather_wire_, sizes.staging),
                                    .node_staging = bytes(gather_wire_, sizes.node_staging, sizes.staging),
                                    .node_copies = bytes(node_copies_, sizes.node_copies),
                                    .tables = bytes(tables_, sizes.tables)};
    gatherer_ = std::make_unique<Gatherer>(context, config_, compute_type_, stored_type_, std::move(layout.weights),
                                           masters_, regions, count_blocks(config_.prefetch_blocks(), context.table));
  }
  const TensorView slots =
      mesh.shard > 1 || stored_type_ != DType::f32 ? gradient_slots_.view(DType::f32, {gradient_slots}) : TensorView{};
  const TensorView chunks =
      layout.reduce.chunks > 0 ? reduce_wire_.view(DType::u8, {layout.reduce.chunks}) : TensorView{};
  reducer_ = std::make_unique<Reducer>(context, config_, stored_type_, std::move(layout.gradients), std::move(owned),
                                       slots, chunks);
}

}  // namespace

ANANKE_PLUGIN(Parameters, Fsdp, plugin::Fsdp);

}  // namespace ananke
