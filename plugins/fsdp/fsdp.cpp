// Parameters plugin: fully sharded data parallelism. Dense units are cut over the shard axis, units of experts over the
// expert_shard axis; copies over the replicate axis.
#include <algorithm>
#include <utility>

#include "plugins/fsdp/fsdp.pb.h"
#include "plugins/fsdp/gatherer.h"
#include "plugins/fsdp/owned.h"
#include "plugins/fsdp/reducer.h"
#include "plugins/fsdp/residence.h"
#include "plugins/fsdp/slots.h"
#include "runtime/base/log.h"
#include "runtime/device/numa.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/compute_type.h"
#include "runtime/roles/parameters.h"

namespace ananke {
namespace {

using fsdp::Gatherer;
using fsdp::Reducer;
using fsdp::Slots;

// Everything that is allocated, in f32 elements where nothing else is said.
struct Layout {
  fsdp::Residence residence;
  fsdp::OwnedRanges owned;   // in the weights, and in their gradients; of each place
  Slots weights, gradients;  // empty where no unit has a home
  fsdp::ReduceMemory reduce;
  fsdp::GatherMemory gather;
  std::int64_t host_sums = 0;                       // one buffer of gradients on their way to the host and back
  std::vector<std::vector<FragmentRun>> host_runs;  // by unit, of what is there
  std::int64_t runs = 0;                            // all of them

  std::int64_t gradient_slots() const { return gradients.elements + reduce.landing; }
  std::int64_t weights_on_their_way() const {  // bytes
    return fsdp::HostWeights::slot_count * gather.from_host;
  }
  std::int64_t gradients_on_their_way() const { return fsdp::HostGradients::slot_count * host_sums; }
};

int count_blocks(std::uint32_t asked, const ParameterTable& table) {
  return static_cast<int>(std::min<std::uint64_t>(asked, table.blocks().size()));
}

std::int64_t aligned(std::int64_t elements) { return (elements + 63) / 64 * 64; }

void lay_out_host_sums(Layout& layout, const ParameterTable& table, const Placement& placement,
                       const MeshCoordinates& at, std::span<const Fragment> fragments) {
  layout.host_runs.resize(table.units().size());
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    const UnitPlacement& place = placement.unit(unit, at);
    if (!layout.residence.on_host[static_cast<std::size_t>(unit)] || place.ranks == 1) continue;
    layout.host_sums = std::max(layout.host_sums, aligned(place.range()));
  }
  for (const FragmentRun& run : runs_of(fragments)) {
    if (!layout.residence.on_host[static_cast<std::size_t>(run.unit)]) continue;
    layout.host_runs[static_cast<std::size_t>(run.unit)].push_back(run);
    ++layout.runs;
  }
}

Layout make_layout(const ParameterTable& table, const Placement& placement, int rank, const plugin::Fsdp& config,
                   int node_ranks, DType compute, DType stored) {
  const MeshCoordinates at = coordinates(placement.mesh(), rank);
  Layout layout;
  layout.residence = fsdp::residence_of(table, config);
  const std::vector<bool>& on_host = layout.residence.on_host;
  layout.owned = fsdp::owned_ranges(table, placement, at, stored, on_host);
  lay_out_host_sums(layout, table, placement, at, placement.fragments(rank));
  const bool cut = placement.mesh().shard > 1, host = layout.residence.any();
  if (cut || host || compute != stored) {
    const int all = static_cast<int>(table.blocks().size());
    layout.weights = fsdp::assign_slots(
        table, placement, config.reshard_after_forward() ? count_blocks(config.prefetch_blocks(), table) : all, compute,
        stored, on_host);
    layout.gather = fsdp::gather_memory(table, placement, at, config, node_ranks, compute, stored, on_host);
  }
  if (cut || host || stored != DType::f32) {
    layout.gradients =
        fsdp::assign_slots(table, placement, count_blocks(config.reduce_blocks(), table), DType::f32, stored, on_host);
    layout.reduce = fsdp::reduce_memory(table, placement, config, stored);
  }
  return layout;
}

// What is stored in bf16 travels as it is: a wire of FP32, the default, would carry zeros beside it.
plugin::Fsdp for_stored(plugin::Fsdp config, DType stored) {
  if (stored == DType::f32) return config;
  if (config.residence() == plugin::Fsdp::HOST) {
    fail(ErrorKind::config,
         "fsdp: residence is HOST, where state is f32, but training.weights is BF16; remove one of the two");
  }
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
    if (config.residence() != plugin::Fsdp::HOST && config.host_fraction() != 1) {
      fail(ErrorKind::config,
           "fsdp: host_fraction {} is set, but residence is DEVICE, so no state goes to the host; set residence: HOST, "
           "or remove host_fraction",
           config.host_fraction());
    }
  }
  ~Fsdp() override { wait_quietly(); }

  bool gathers_into(DType type) const override { return type == DType::f32 || type == DType::bf16; }
  bool stores_in(DType type) const override { return type == DType::f32 || type == DType::bf16; }

  std::vector<PlanLine> plan(const ParameterTable& table, const Placement& placement) const override {
    const Layout layout = make_layout(table, placement, rank_, config_, node_ranks_, compute_type_, stored_type_);
    std::vector<PlanLine> lines;
    const auto add = [&](const char* purpose, std::size_t bytes, Place place = Place::device) {
      if (bytes > 0) lines.push_back({purpose, place, bytes});
    };
    const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    for (const char* purpose : {"weights", "gradients"}) add(purpose, bytes(layout.owned.bytes));
    for (const char* purpose : {"weights (host)", "gradients (host)"}) {
      add(purpose, bytes(layout.owned.host_bytes), Place::host);
    }
    add("weights on their way", bytes(layout.weights_on_their_way()));
    add("gradients on their way", bytes_of(layout.gradients_on_their_way()));
    add("square sums", bytes(layout.runs) * sizeof(double));
    add("gather slots", bytes_of(layout.weights.elements));
    add("gradient slots", bytes_of(layout.gradient_slots()));
    add("gather wire", bytes(layout.gather.staging + layout.gather.node_staging));
    add("node copies", bytes(layout.gather.node_copies));
    add("fp8 tables", bytes(layout.gather.tables));
    if (layout.gather.tables > 0) {
      lines.push_back(
          {"fp8 tables (host)", Place::host, static_cast<std::uint64_t>(layout.gather.tables), Lifetime::start});
    }
    add("reduce wire", bytes(layout.reduce.chunks));
    return lines;
  }
  Place place_of(const ParameterTable& table, int unit) const override {
    return fsdp::residence_of(table, config_).on_host[at(unit)] ? Place::host : Place::device;
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
    if (host_weights_) {
      from_host_->wait(*turn_);
      to_host_->wait(*turn_);
    }
    reducer_->begin(schedule);
    if (gatherer_) gatherer_->begin(schedule);
  }

  UnitViews acquire(int item, int unit) override {
    const UnitUse& use = find_use(item, unit);
    UnitViews views;
    if (use.needs_weights) views.weights = gatherer_ ? gatherer_->acquire(item, unit) : whole_[at(unit)];
    if ((*schedule_)[at(item)].phase != Phase::forward) {
      views.gradient = reducer_->acquire(unit, views.write_gradient);
    }
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
    if (host_weights_) {
      to_host_->record(*left_);
      compute_->wait(*left_);
    }
    schedule_ = nullptr;
  }

  TensorView square_sums() override { return square_sums_; }

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
  void start_streams(Device& device);
  void allocate(Device& device, const Layout& layout);
  std::vector<SegmentViews> find_owned(const StartContext& context, const Layout& layout);
  void make_gatherer(const StartContext& context, Layout& layout);
  void make_reducer(const StartContext& context, Layout& layout, std::vector<SegmentViews> owned);
  void tell(Device& device, const Layout& layout) const;
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
    for (Stream* stream : {network_, nvlink_, from_host_, to_host_, compute_}) {
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
  Stream* from_host_ = nullptr;
  Stream* to_host_ = nullptr;
  std::unique_ptr<Event> turn_;  // from one stream to the others at begin(), and back at finish()
  std::unique_ptr<Event> left_;  // what goes to the host, at finish()
  Buffer weights_, gradients_, gather_slots_, gradient_slots_, gather_wire_, node_copies_, tables_, reduce_wire_;
  Buffer host_weights_, host_gradients_, weights_on_their_way_, gradients_on_their_way_, square_sum_memory_;
  TensorView square_sums_;
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
  if (config_.node_copy() && mesh.shard > 1 && context.node.size() == 1) {
    log_warning(
        "fsdp: node_copy is set, but this rank's node holds no other of the {} ranks of the shard axis, or nodes hold "
        "unequal numbers of them; no copy is kept, and weights are gathered twice over the network",
        mesh.shard);
  }
  Device& device = context.backend.device();
  start_streams(device);
  Layout layout =
      make_layout(context.table, context.placement, rank_, config_, context.node.size(), compute_type_, stored_type_);
  allocate(device, layout);
  tell(device, layout);
  std::vector<SegmentViews> owned = find_owned(context, layout);
  if (mesh.shard > 1 || layout.residence.any() || compute_type_ != stored_type_) make_gatherer(context, layout);
  make_reducer(context, layout, std::move(owned));
}

void Fsdp::start_streams(Device& device) {
  compute_ = &device.stream(Resource::compute);
  network_ = &device.stream(Resource::network);
  nvlink_ = &device.stream(Resource::nvlink);
  from_host_ = &device.stream(Resource::host_to_device);
  to_host_ = &device.stream(Resource::device_to_host);
  turn_ = device.make_event();
  left_ = device.make_event();
}

void Fsdp::allocate(Device& device, const Layout& layout) {
  Arena& memory = device.memory();
  const auto allocate = [&](std::int64_t bytes, const char* purpose) {
    return memory.allocate(static_cast<std::size_t>(bytes), purpose);
  };
  weights_ = allocate(layout.owned.bytes, "weights");
  gradients_ = allocate(layout.owned.bytes, "gradients");
  {
    const NumaPreference near(device.numa_node());
    const auto bytes = static_cast<std::size_t>(layout.owned.host_bytes);
    host_weights_ = device.host_memory().allocate(bytes, "weights (host)");
    host_gradients_ = device.host_memory().allocate(bytes, "gradients (host)");
  }
  gather_slots_ = memory.allocate(bytes_of(layout.weights.elements), "gather slots");
  gradient_slots_ = memory.allocate(bytes_of(layout.gradient_slots()), "gradient slots");
  gradients_on_their_way_ = memory.allocate(bytes_of(layout.gradients_on_their_way()), "gradients on their way");
  weights_on_their_way_ = allocate(layout.weights_on_their_way(), "weights on their way");
  square_sum_memory_ = allocate(layout.runs * static_cast<std::int64_t>(sizeof(double)), "square sums");
  if (layout.runs > 0) square_sums_ = square_sum_memory_.view(DType::f64, {layout.runs});
  gather_wire_ = allocate(layout.gather.staging + layout.gather.node_staging, "gather wire");
  node_copies_ = allocate(layout.gather.node_copies, "node copies");
  tables_ = allocate(layout.gather.tables, "fp8 tables");
  reduce_wire_ = allocate(layout.reduce.chunks, "reduce wire");
  for (const Buffer* buffer : {&weights_, &gradients_, &host_weights_, &host_gradients_}) {
    if (*buffer) device.zero(*compute_, buffer->data(), buffer->bytes());
  }
  compute_->synchronize();
}

void Fsdp::tell(Device& device, const Layout& layout) const {
  if (config_.residence() != plugin::Fsdp::HOST) return;
  if (rank_ == 0) {
    log_info("fsdp: {}", describe(layout.residence, 2 * static_cast<std::uint64_t>(layout.owned.host_bytes)));
  }
  NumaPages pages;
  for (const Buffer* buffer : {&host_weights_, &host_gradients_}) {
    if (*buffer) pages += numa_pages(buffer->data(), buffer->bytes());
  }
  bool wrong = false;
  const std::string verdict = numa_verdict(pages, device.numa_node(), wrong);
  if (!host_weights_) return;
  if (wrong) {
    log_warning(
        "fsdp: state in host memory is {}, and travels through the link between the sockets; start the worker on the "
        "device's NUMA node, or free memory there",
        verdict);
  } else if (rank_ == 0) {
    log_info("fsdp: state in host memory is {}", verdict);
  }
}

// Fills masters, whole units and fragments; returns the gradients of this rank's ranges, by unit.
std::vector<SegmentViews> Fsdp::find_owned(const StartContext& context, const Layout& layout) {
  const std::vector<bool>& on_host = layout.residence.on_host;
  std::vector<SegmentViews> owned;
  for (std::size_t unit = 0; unit < layout.owned.begin.size(); ++unit) {
    const UnitPlacement& place = context.placement.unit(static_cast<int>(unit), at_);
    const auto in = [&](const Buffer& here, const Buffer& there) {
      return fsdp::owned_in(on_host[unit] ? there : here, layout.owned.begin[unit], place, stored_type_);
    };
    masters_.push_back(in(weights_, host_weights_));
    whole_.push_back(place.ranks == 1 ? masters_.back() : SegmentViews{});
    owned.push_back(in(gradients_, host_gradients_));
  }
  for (const Fragment& f : context.placement.fragments(rank_)) {
    fragments_.push_back({f, fsdp::fragment_in(masters_[at(f.unit)], f), fsdp::fragment_in(owned[at(f.unit)], f),
                          on_host[at(f.unit)] ? Place::host : Place::device});
  }
  return owned;
}

void Fsdp::make_gatherer(const StartContext& context, Layout& layout) {
  const auto bytes = [](const Buffer& buffer, std::int64_t count, std::int64_t begin = 0) {
    return count > 0 ? buffer.view(DType::u8, {count}, static_cast<std::size_t>(begin)) : TensorView{};
  };
  const fsdp::GatherMemory& sizes = layout.gather;
  const std::int64_t from_host = layout.weights_on_their_way() / static_cast<std::int64_t>(sizeof(float));
  const Gatherer::Regions regions{.homes = gather_slots_.view(DType::f32, {layout.weights.elements}),
                                  .staging = bytes(gather_wire_, sizes.staging),
                                  .node_staging = bytes(gather_wire_, sizes.node_staging, sizes.staging),
                                  .node_copies = bytes(node_copies_, sizes.node_copies),
                                  .tables = bytes(tables_, sizes.tables),
                                  .from_host = weights_on_their_way_.view(DType::f32, {from_host})};
  gatherer_ = std::make_unique<Gatherer>(context, config_, compute_type_, stored_type_, std::move(layout.weights),
                                         masters_, layout.residence.on_host, regions,
                                         count_blocks(config_.prefetch_blocks(), context.table));
}

void Fsdp::make_reducer(const StartContext& context, Layout& layout, std::vector<SegmentViews> owned) {
  const std::vector<bool>& on_host = layout.residence.on_host;
  std::unique_ptr<fsdp::HostGradients> host;
  if (layout.residence.any()) {
    std::vector<fsdp::HostGradients::Owned> there;
    for (std::size_t unit = 0; unit < owned.size(); ++unit) {
      there.push_back(
          {on_host[unit], on_host[unit] ? fsdp::as_one(owned[unit]) : TensorView{}, std::move(layout.host_runs[unit])});
    }
    host = std::make_unique<fsdp::HostGradients>(
        context.backend.device(), *context.backend.operators().elementwise, std::move(there),
        gradients_on_their_way_.view(DType::f32, {layout.gradients_on_their_way()}),
        layout.runs > 0 ? square_sums_ : TensorView{nullptr, DType::f64, {0}});
  }
  const bool any_home = context.placement.mesh().shard > 1 || host || stored_type_ != DType::f32;
  const TensorView slots = any_home ? gradient_slots_.view(DType::f32, {layout.gradient_slots()}) : TensorView{};
  const TensorView chunks =
      layout.reduce.chunks > 0 ? reduce_wire_.view(DType::u8, {layout.reduce.chunks}) : TensorView{};
  reducer_ = std::make_unique<Reducer>(context, config_, stored_type_, std::move(layout.gradients), std::move(owned),
                                       slots, chunks, std::move(host), on_host);
}

}  // namespace

ANANKE_PLUGIN(Parameters, Fsdp, plugin::Fsdp);

}  // namespace ananke
