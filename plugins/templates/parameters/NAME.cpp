// Parameters plugin @NAME@: plain data parallelism. Every rank holds everything, so there is nothing to gather; the
// gradients of a step are summed over the ranks once, whatever the number of microbatches. runtime/roles/parameters.h
// is the contract, fsdp of the source tree an implementation that cuts weights and gathers them ahead of use.
#include <algorithm>

#include "@NAME@.pb.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/parameters.h"

namespace ananke {
namespace {

class @CLASS@Parameters final : public Parameters {
 public:
  @CLASS@Parameters(const RoleContext& context, const plugin::@CLASS@& config)
      : config_(config), rank_(context.rank), at_(coordinates(context.mesh, context.rank)) {
    if (context.mesh.shard == 1) return;
    fail(ErrorKind::config, "it holds whole copies, but the mesh is {}; set mesh {{ replicate: {} shard: 1 }}",
         to_string(context.mesh), context.mesh.ranks());
  }

  // Before anything is allocated; the sum over all roles is printed at start.
  std::vector<PlanLine> plan(const ParameterTable& table, const Placement& placement) const override {
    std::uint64_t bytes = 0;
    for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
      bytes += static_cast<std::uint64_t>(placement.unit(unit, at_).padded()) * sizeof(float);
    }
    return {{"weights", Place::device, bytes}, {"gradients", Place::device, bytes}};
  }

  // A unit is what the model uses together, one flat array; on a shard axis of 1 a rank owns all of it.
  void start(const StartContext& context) override {
    device_ = &context.backend.device();
    replicate_ = &context.replicate;
    compute_ = &device_->stream(Resource::compute);
    network_ = &device_->stream(Resource::network);
    reduced_ = device_->make_event();
    const std::uint64_t bytes = plan(context.table, context.placement)[0].bytes;
    weights_ = device_->memory().allocate(bytes, "weights");
    gradients_ = device_->memory().allocate(bytes, "gradients");
    for (const Buffer* buffer : {&weights_, &gradients_}) device_->zero(*compute_, buffer->data(), buffer->bytes());
    compute_->synchronize();

    std::size_t begin = 0;  // bytes
    for (int unit = 0; unit < static_cast<int>(context.table.units().size()); ++unit) {
      const UnitPlacement& place = context.placement.unit(unit, at_);
      units_.push_back({weights_.view(DType::f32, {place.padded()}, begin),
                        gradients_.view(DType::f32, {place.padded()}, begin), place, device_->make_event()});
      begin += units_.back().weights.bytes();
    }
    for (const Fragment& f : context.placement.fragments(rank_)) {
      fragments_.push_back({f, at(f.unit).weights.slice(f.offset_in_range, f.count),
                            at(f.unit).gradient.slice(f.offset_in_range, f.count)});
    }
  }

  // What the optimizer updates, in place.
  std::span<const OwnedFragment> fragments() override { return fragments_; }

  // A step, or an evaluation, which has forward items only and leaves the gradients alone.
  void begin(const Schedule& schedule) override {
    schedule_ = &schedule;
    const auto makes_gradients = [](const Item& item) { return item.phase != Phase::forward; };
    if (std::any_of(schedule.begin(), schedule.end(), makes_gradients)) {
      device_->zero(*compute_, gradients_.data(), gradients_.bytes());
    }
  }

  UnitViews acquire(int item, int unit) override {
    UnitViews views;
    views.weights = segments_of(at(unit).weights, at(unit).place);
    if (item_at(item).phase != Phase::forward) views.gradient = segments_of(at(unit).gradient, at(unit).place);
    return views;
  }
  void release(int, int) override {}  // the memory is nobody else's

  // Items add to the unit's gradient on the compute stream. With the last of them it is complete, and is summed on the
  // network stream, which waits for that point.
  void reduce(int item, int unit) override {
    for (const UnitUse& use : item_at(item).units) {
      if (use.unit != unit || !use.last_gradient) continue;
      compute_->record(*at(unit).computed);
      if (config_.overlap()) {
        sum(unit);
      } else {
        waiting_.push_back(unit);
      }
    }
  }

  // What comes next on the compute stream, the optimizer's update, runs after the sums.
  void finish() override {
    for (const int unit : waiting_) sum(unit);
    waiting_.clear();
    network_->record(*reduced_);
    compute_->wait(*reduced_);
    schedule_ = nullptr;
  }

  void updated() override {}  // there are no gathered copies that could be stale

  Traffic traffic() const override {
    return {{Resource::network, "replicate", -1, Direction::reduce, received_}};
  }

 private:
  struct Unit {
    TensorView weights, gradient;     // f32 [padded]
    UnitPlacement place;              // where its parameters lie
    std::unique_ptr<Event> computed;  // the gradient is complete on the compute stream
  };

  // All ranks call the collectives in the same order, from the thread that calls us.
  void sum(int unit) {
    network_->wait(*at(unit).computed);
    replicate_->all_reduce(*network_, at(unit).gradient, Reduction::sum);
    const auto ranks = static_cast<std::uint64_t>(replicate_->size());
    received_ += 2 * at(unit).gradient.bytes() * (ranks - 1) / ranks;
  }

  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  const Item& item_at(int item) const { return (*schedule_)[static_cast<std::size_t>(item)]; }

  plugin::@CLASS@ config_;
  int rank_;
  MeshCoordinates at_;
  Device* device_ = nullptr;
  Communicator* replicate_ = nullptr;
  Stream *compute_ = nullptr, *network_ = nullptr;
  std::unique_ptr<Event> reduced_;
  Buffer weights_, gradients_;
  std::vector<Unit> units_;
  std::vector<OwnedFragment> fragments_;
  std::vector<int> waiting_;  // units that finish() sums
  const Schedule* schedule_ = nullptr;
  std::uint64_t received_ = 0;  // bytes
};

}  // namespace

ANANKE_PLUGIN(Parameters, @CLASS@Parameters, plugin::@CLASS@);

}  // namespace ananke
