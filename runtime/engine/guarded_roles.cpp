#include "runtime/engine/guarded_roles.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "ananke/job.pb.h"
#include "runtime/engine/guarded.h"
#include "runtime/roles/compute_type.h"

namespace ananke {
namespace {

// Arguments of spans in a step's trace.
auto of_unit(int item, int unit) {
  return [=] { return std::vector<TraceArgument>{{"item", item}, {"unit", unit}}; };
}
auto of_block(int block, int microbatch) {
  return [=] { return std::vector<TraceArgument>{{"block", block}, {"microbatch", microbatch}}; };
}
auto of_part(const OptimizerUpdate& a) {
  return [&a] {
    return std::vector<TraceArgument>{{"parameter", a.parameter.name},
                                      {"elements", (a.gradient ? a.gradient : a.weight).elements()}};
  };
}
auto of_layer(const ExpertExchange& a, int chunk = -1) {
  return [&a, chunk] {
    std::vector<TraceArgument> arguments = {{"layer", a.layer}};
    if (chunk >= 0) arguments.emplace_back("chunk", chunk);
    return arguments;
  };
}

class GuardedParameters final : public Guarded<Parameters> {
 public:
  GuardedParameters(std::unique_ptr<Parameters> role, PluginGuard guard, const RoleContext& context)
      : Guarded(std::move(role), std::move(guard)),
        compute_(compute_type(context.job)),
        stored_(stored_type(context.job)),
        rank_(context.rank),
        at_(coordinates(context.mesh, context.rank)) {}

  bool gathers_into(DType type) const override {
    return call("gathers_into", [&] { return role_->gathers_into(type); });
  }
  bool stores_in(DType type) const override {
    return call("stores_in", [&] { return role_->stores_in(type); });
  }
  std::vector<PlanLine> plan(const ParameterTable& table, const Placement& placement) const override {
    return checked("plan", call("plan", [&] { return role_->plan(table, placement); }));
  }
  std::vector<CollectiveUse> exchanges(const ParameterTable& table, const Placement& placement) const override {
    return checked(call("exchanges", [&] { return role_->exchanges(table, placement); }));
  }
  Place place_of(const ParameterTable& table, int unit) const override {
    return call("place_of", [&] { return role_->place_of(table, unit); });
  }
  void start(const StartContext& context) override {
    placement_ = &context.placement;
    table_ = &context.table;
    call("start", [&] { role_->start(context); });
    check_fragments(context.table);
    check_square_sums();
  }
  std::span<const OwnedFragment> fragments() override {
    return call("fragments", [&] { return role_->fragments(); });
  }
  void begin(const Schedule& schedule) override {
    schedule_ = &schedule;
    traced("begin", [&] { role_->begin(schedule); });
  }
  UnitViews acquire(int item, int unit) override {
    const UnitViews views = traced("acquire", of_unit(item, unit), [&] { return role_->acquire(item, unit); });
    const Item& use = (*schedule_)[static_cast<std::size_t>(item)];
    const auto needs = std::find_if(use.units.begin(), use.units.end(), [&](auto& one) { return one.unit == unit; });
    if (views.weights || (needs != use.units.end() && needs->needs_weights)) {
      check_segments("the weights' view", views.weights, unit, compute_);
    }
    if (views.gradient || use.phase != Phase::forward) {
      check_segments("the gradient's view", views.gradient, unit, DType::f32);
    }
    if (views.write_gradient) {
      guard_.require(views.gradient && table_->units()[static_cast<std::size_t>(unit)].kind == UnitKind::experts,
                     "acquire",
                     "sets write_gradient for unit {} in item {}, whose gradient is added to: only experts' may be written; "
                     "zero it and leave write_gradient false",
                     unit, item);
    }
    return views;
  }
  void release(int item, int unit) override {
    traced("release", of_unit(item, unit), [&] { role_->release(item, unit); });
  }
  void reduce(int item, int unit) override {
    traced("reduce", of_unit(item, unit), [&] { role_->reduce(item, unit); });
  }
  void finish() override {
    traced("finish", [&] { role_->finish(); });
  }
  TensorView square_sums() override {
    return call("square_sums", [&] { return role_->square_sums(); });
  }
  void updated() override {
    traced("updated", [&] { role_->updated(); });
  }
  Traffic traffic() const override {
    return checked(call("traffic", [&] { return role_->traffic(); }));
  }

 private:
  void check_segments(const char* what, const SegmentViews& views, int unit, DType wire) const {
    guard_.require(views.given, "acquire", "{} of unit {} is not given", what, unit);
    for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
      check_flat("acquire", what, views[which], placement_->unit(unit, at_).segment(which).padded,
                 which == UnitSegment::wire ? wire : DType::f32);
    }
  }
  void check_square_sums() {
    const TensorView sums = square_sums();
    if (!sums) return;
    std::vector<Fragment> there;
    for (const OwnedFragment& one : fragments()) {
      if (one.place == Place::host) there.push_back(one.where);
    }
    check_flat("square_sums", "its view", sums, std::ssize(runs_of(there)), DType::f64);
  }
  void check_fragments(const ParameterTable& table) {
    const std::vector<Fragment> owned = placement_->fragments(rank_);
    const std::span<const OwnedFragment> given = fragments();
    guard_.require(given.size() == owned.size(), "fragments", "it gives {}, but the placement has {} on this rank",
                   given.size(), owned.size());
    for (std::size_t i = 0; i < owned.size(); ++i) {
      const Fragment& has = given[i].where;
      guard_.require(has.parameter == owned[i].parameter && has.begin == owned[i].begin && has.count == owned[i].count,
                     "fragments",
                     "number {} is elements {} to {} of parameter {}, but the placement has {} to {} of {} there", i,
                     has.begin, has.begin + has.count, has.parameter, owned[i].begin, owned[i].begin + owned[i].count,
                     owned[i].parameter);
      guard_.require(given[i].place == place_of(table, has.unit), "fragments",
                     "number {} is {} the host, but place_of() says otherwise of unit {}", i,
                     given[i].place == Place::host ? "on" : "not on", has.unit);
      const DType type = stored_type(table.parameters()[static_cast<std::size_t>(has.parameter)].kind, stored_);
      guard_.require(given[i].place == Place::device || stored_ == DType::f32, "fragments",
                     "number {} is on the host, where only f32 is updated, but {} is stored", i, name_of(stored_));
      check_flat("fragments", "a weight's view", given[i].weight, has.count, type);
      check_flat("fragments", "a gradient's view", given[i].gradient, has.count, type);
    }
  }
  DType compute_, stored_;  // of wire segments
  int rank_;
  MeshCoordinates at_;
  const Placement* placement_ = nullptr;
  const ParameterTable* table_ = nullptr;
  const Schedule* schedule_ = nullptr;
};

class GuardedOptimizer final : public Guarded<Optimizer> {
 public:
  using Guarded::Guarded;
  OptimizerLayout layout(const Parameter& parameter) const override {
    const OptimizerLayout layout = call("layout", [&] { return role_->layout(parameter); });
    guard_.require(layout == OptimizerLayout::any_fragment || layout == OptimizerLayout::whole_matrix, "layout",
                   "{} needs layout {}, which is no OptimizerLayout", parameter.name, static_cast<int>(layout));
    guard_.require(layout == OptimizerLayout::any_fragment || parameter.shape.rank() == 2, "layout",
                   "it asks for the whole matrix of {}, which is {}", parameter.name, to_string(parameter.shape));
    return layout;
  }
  double cost(const Parameter& parameter) const override {
    const double cost = call("cost", [&] { return role_->cost(parameter); });
    guard_.require(std::isfinite(cost) && cost >= 0, "cost", "{} costs {}; it must be finite and not negative",
                   parameter.name, cost);
    return cost;
  }
  std::vector<StateTensor> states(const Parameter& parameter) const override {
    auto states = call("states", [&] { return role_->states(parameter); });
    std::set<std::string> names;
    for (const StateTensor& state : states) {
      const bool plain = !state.name.empty() && state.name.find('/') == std::string::npos;
      guard_.require(plain && names.insert(state.name).second, "states",
                     "{} has a state named '{}'; names are not empty, have no '/' and differ from each other",
                     parameter.name, state.name);
    }
    return states;
  }
  double learning_rate() const override {
    const double lr = call("learning_rate", [&] { return role_->learning_rate(); });
    guard_.require(std::isfinite(lr), "learning_rate", "it is {}; it must be finite", lr);
    return lr;
  }
  bool stores_in(DType type) const override {
    return call("stores_in", [&] { return role_->stores_in(type); });
  }
  void update(Stream& stream, const OperatorSet& operators, const OptimizerUpdate& a) override {
    traced("update", of_part(a), [&] { role_->update(stream, operators, a); });
  }
  void update_all(Stream& stream, const OperatorSet& operators, std::span<const OptimizerUpdate> parts) override {
    traced("update", [&] { role_->update_all(stream, operators, parts); });
  }
  std::int64_t matrix_rows(const Parameter& parameter) const override {
    const std::int64_t rows = call("matrix_rows", [&] { return role_->matrix_rows(parameter); });
    guard_.require(rows > 0 && parameter.shape[0] % rows == 0, "matrix_rows",
                   "{} {} is not made of matrices of {} rows", parameter.name, to_string(parameter.shape), rows);
    return rows;
  }
  std::size_t transform_workspace(const OperatorSet& operators, std::int64_t count, std::int64_t rows,
                                  std::int64_t columns) const override {
    const std::size_t bytes =
        call("transform_workspace", [&] { return role_->transform_workspace(operators, count, rows, columns); });
    guard_.require(bytes <= most_plugin_bytes, "transform_workspace", "{} bytes make no sense; at most {}", bytes,
                   most_plugin_bytes);
    return bytes;
  }
  void prepare(Stream& stream, const OperatorSet& operators, const OptimizerUpdate& a,
               const TensorView& transfer) override {
    traced("prepare", of_part(a), [&] { role_->prepare(stream, operators, a, transfer); });
  }
  void transform(Stream& stream, const OperatorSet& operators, const MatrixBatch& batch) override {
    traced("transform", [&] { role_->transform(stream, operators, batch); });
  }
  void apply(Stream& stream, const OperatorSet& operators, const OptimizerUpdate& a,
             const TensorView& direction) override {
    traced("apply", of_part(a), [&] { role_->apply(stream, operators, a, direction); });
  }
};

class GuardedExperts final : public Guarded<Experts> {
 public:
  using Guarded::Guarded;
  bool exchanges_tokens() const override {
    return call("exchanges_tokens", [&] { return role_->exchanges_tokens(); });
  }
  void use(const OperatorSet& operators) override {
    call("use", [&] { role_->use(operators); });
  }
  int chunks() const override {
    const int chunks = call("chunks", [&] { return role_->chunks(); });
    guard_.require(chunks >= 1 && chunks <= most_chunks, "chunks", "a microbatch of {} chunks; it must be 1 to {}",
                   chunks, most_chunks);
    return chunks;
  }
  std::int64_t capacity(const ExpertSizes& s) const override {
    const std::int64_t rows = call("capacity", [&] { return role_->capacity(s); });
    guard_.require(rows >= 0 && static_cast<std::uint64_t>(rows) <= most_plugin_bytes / 4, "capacity",
                   "{} rows for {} tokens of {} experts each make no sense", rows, s.tokens, s.k);
    return rows;
  }
  std::size_t saved(const ExpertSizes& s) const override {
    return bytes("saved", call("saved", [&] { return role_->saved(s); }));
  }
  std::size_t chunk_saved(const ExpertSizes& s) const override {
    return bytes("chunk_saved", call("chunk_saved", [&] { return role_->chunk_saved(s); }));
  }
  std::size_t workspace(const ExpertSizes& s) const override {
    return bytes("workspace", call("workspace", [&] { return role_->workspace(s); }));
  }
  std::vector<PlanLine> plan(const ExpertSizes& s) const override {
    return checked("plan", call("plan", [&] { return role_->plan(s); }));
  }
  std::vector<CollectiveUse> exchanges(const ExpertSizes& s) const override {
    return checked(call("exchanges", [&] { return role_->exchanges(s); }));
  }
  void start(const ExpertsStart& start) override {
    call("start", [&] { role_->start(start); });
  }
  void begin(Stream& compute, const ExpertExchange& a) override {
    traced("begin", of_layer(a), [&] { role_->begin(compute, a); });
  }
  void dispatch_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    traced("dispatch_begin", of_layer(a, chunk.index), [&] { role_->dispatch_begin(compute, a, chunk); });
  }
  void dispatch_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    traced("dispatch_end", of_layer(a, chunk.index), [&] { role_->dispatch_end(compute, a, chunk); });
  }
  void combine_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    traced("combine_begin", of_layer(a, chunk.index), [&] { role_->combine_begin(compute, a, chunk); });
  }
  void combine_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    traced("combine_end", of_layer(a, chunk.index), [&] { role_->combine_end(compute, a, chunk); });
  }
  void combine_backward_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    traced("combine_backward_begin", of_layer(a, chunk.index),
           [&] { role_->combine_backward_begin(compute, a, chunk); });
  }
  void combine_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    traced("combine_backward_end", of_layer(a, chunk.index), [&] { role_->combine_backward_end(compute, a, chunk); });
  }
  void dispatch_backward_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    traced("dispatch_backward_begin", of_layer(a, chunk.index),
           [&] { role_->dispatch_backward_begin(compute, a, chunk); });
  }
  void dispatch_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    traced("dispatch_backward_end", of_layer(a, chunk.index), [&] { role_->dispatch_backward_end(compute, a, chunk); });
  }
  Traffic traffic() const override {
    return checked(call("traffic", [&] { return role_->traffic(); }));
  }

 private:
  static constexpr int most_chunks = 1 << 16;
  std::size_t bytes(std::string_view method, std::size_t size) const {
    guard_.require(size <= most_plugin_bytes, method, "{} bytes make no sense; at most {}", size, most_plugin_bytes);
    return size;
  }
};

class GuardedActivations final : public Guarded<Activations> {
 public:
  using Guarded::Guarded;
  std::vector<PlanLine> plan(std::int64_t inputs, std::size_t bytes) const override {
    return checked("plan", call("plan", [&] { return role_->plan(inputs, bytes); }));
  }
  double offload_fraction() const override {
    const double fraction = call("offload_fraction", [&] { return role_->offload_fraction(); });
    guard_.require(fraction >= 0 && fraction <= 1, "offload_fraction", "{} is no fraction; 0 to 1", fraction);
    return fraction;
  }
  bool rounds() const override {
    return call("rounds", [&] { return role_->rounds(); });
  }
  void use(const OperatorSet& operators) override {
    call("use", [&] { role_->use(operators); });
  }
  void start(Device& device, int blocks, int microbatches, std::size_t bytes) override {
    call("start", [&] { role_->start(device, blocks, microbatches, bytes); });
  }
  void begin(const Schedule& schedule) override {
    call("begin", [&] { role_->begin(schedule); });
  }
  ActivationTraffic traffic() override {
    return call("traffic", [&] { return role_->traffic(); });
  }
  void* place(int block, int microbatch) override {
    return memory("place", block, microbatch, call("place", [&] { return role_->place(block, microbatch); }));
  }
  void keep(int block, int microbatch) override {
    traced("keep", of_block(block, microbatch), [&] { role_->keep(block, microbatch); });
  }
  void* take(int block, int microbatch) override {
    return memory("take", block, microbatch,
                  traced("take", of_block(block, microbatch), [&] { return role_->take(block, microbatch); }));
  }
  void forget(int block, int microbatch) override {
    traced("forget", of_block(block, microbatch), [&] { role_->forget(block, microbatch); });
  }

 private:
  void* memory(std::string_view method, int block, int microbatch, void* given) const {
    guard_.require(given != nullptr, method, "it gives no memory for block {}, microbatch {}", block, microbatch);
    return given;
  }
};

class GuardedBatches final : public Guarded<Batches> {
 public:
  GuardedBatches(std::unique_ptr<Batches> role, PluginGuard guard, const RoleContext& context)
      : Guarded(std::move(role), std::move(guard)),
        row_length_(context.job.training().sequence_length()),
        vocabulary_(static_cast<std::int64_t>(context.job.model().vocab_size())),
        ranks_(context.mesh.ranks()) {}

  bool next(std::int64_t count, Rows& out) override {
    const bool any = traced("next", [&] { return role_->next(count, out); });
    guard_.require(any && out.rows == count / ranks_ && out.row_length == row_length_, "next",
                   "it gives {} rows of {} tokens{}; a training step needs {} of {} on every rank", out.rows,
                   out.row_length, any ? "" : " and says that its source has ended", count / ranks_, row_length_);
    const auto tokens = static_cast<std::size_t>(out.rows * out.row_length);
    guard_.require(out.tokens.size() == tokens && out.targets.size() == tokens && out.positions.size() == tokens &&
                       out.segments.size() == static_cast<std::size_t>(out.rows),
                   "next", "{} rows of {} tokens have {} tokens, {} targets, {} positions and {} lists of segments",
                   out.rows, out.row_length, out.tokens.size(), out.targets.size(), out.positions.size(),
                   out.segments.size());
    check_values(out);
    check_segments(out);
    return any;
  }
  std::string position() const override {
    return call("position", [&] { return role_->position(); });
  }
  void restore(const std::string& position) override {
    call("restore", [&] { role_->restore(position); });
  }

 private:
  void check_values(const Rows& out) const {
    std::int64_t valid = 0;
    for (std::size_t i = 0; i < out.tokens.size(); ++i) {
      const auto inside = [&](std::int32_t value, std::int64_t least, std::int64_t end) {
        return value >= least && value < end;
      };
      guard_.require(inside(out.tokens[i], 0, vocabulary_) && inside(out.targets[i], -1, vocabulary_) &&
                         inside(out.positions[i], 0, row_length_),
                     "next", "element {}: token {}, target {} (vocabulary {}), position {} in a row of {}", i,
                     out.tokens[i], out.targets[i], vocabulary_, out.positions[i], row_length_);
      valid += out.targets[i] >= 0 ? 1 : 0;
    }
    guard_.require(valid == out.valid_targets, "next", "it says that {} targets are valid, but {} are",
                   out.valid_targets, valid);
  }
  void check_segments(const Rows& out) const {
    for (std::size_t row = 0; row < out.segments.size(); ++row) {
      const std::vector<std::int32_t>& begins = out.segments[row];
      const bool ascending = std::adjacent_find(begins.begin(), begins.end(), std::greater_equal<>()) == begins.end();
      guard_.require(!begins.empty() && begins.front() == 0 && ascending && begins.back() < row_length_, "next",
                     "the segments of row {} do not begin at 0 and rise below {}", row, row_length_);
    }
  }
  std::int64_t row_length_, vocabulary_, ranks_;
};

class GuardedObserver final : public Guarded<Observer> {
 public:
  using Guarded::Guarded;
  void on_step(const StepRecord& record) override {
    traced("on_step", [&] { role_->on_step(record); });
  }
  void on_evaluation(const EvaluationRecord& record) override {
    traced("on_evaluation", [&] { role_->on_evaluation(record); });
  }
  void on_event(const RunEvent& event) override {
    call("on_event", [&] { role_->on_event(event); });
  }
};

}  // namespace

std::unique_ptr<Parameters> guarded(std::unique_ptr<Parameters> role, PluginGuard guard, const RoleContext& context) {
  return std::make_unique<GuardedParameters>(std::move(role), std::move(guard), context);
}
std::unique_ptr<Optimizer> guarded(std::unique_ptr<Optimizer> role, PluginGuard guard, const RoleContext&) {
  return std::make_unique<GuardedOptimizer>(std::move(role), std::move(guard));
}
std::unique_ptr<Experts> guarded(std::unique_ptr<Experts> role, PluginGuard guard, const RoleContext&) {
  return std::make_unique<GuardedExperts>(std::move(role), std::move(guard));
}
std::unique_ptr<Activations> guarded(std::unique_ptr<Activations> role, PluginGuard guard, const RoleContext&) {
  return std::make_unique<GuardedActivations>(std::move(role), std::move(guard));
}
std::unique_ptr<Batches> guarded(std::unique_ptr<Batches> role, PluginGuard guard, const RoleContext& context) {
  return std::make_unique<GuardedBatches>(std::move(role), std::move(guard), context);
}
std::unique_ptr<Observer> guarded(std::unique_ptr<Observer> role, PluginGuard guard, const RoleContext&) {
  return std::make_unique<GuardedObserver>(std::move(role), std::move(guard));
}

}  // namespace ananke
