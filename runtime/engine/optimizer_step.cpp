#include "runtime/engine/optimizer_step.h"

#include <algorithm>
#include <utility>

#include "runtime/device/numa.h"
#include "runtime/roles/compute_type.h"

namespace ananke {
namespace {

constexpr std::int64_t alignment = 64;  // elements

// Of one state.
std::size_t state_bytes(std::int64_t elements, DType type) {
  return static_cast<std::size_t>((elements + alignment - 1) / alignment * alignment) * size_of(type);
}

Optimizer& optimizer_of(const Fragment& fragment, const std::vector<std::string>& chosen,
                        const OptimizerMap& optimizers) {
  return *optimizers.at(chosen[static_cast<std::size_t>(fragment.parameter)]);
}

// A state is of its weight's type. All first states of fragments one behind the other, then all second ones and so on:
// where fragments are neighbours in weights and gradients, they are in their states too (Optimizer::update_all).
void place_states_of(Place place, std::span<UpdateTarget> targets, std::span<const std::vector<StateTensor>> states,
                     const Buffer& memory) {
  std::size_t at = 0;
  bool more = true;
  for (std::size_t s = 0; more; ++s) {
    more = false;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (s >= states[i].size() || targets[i].fragment->place != place) continue;
      const std::int64_t count = targets[i].fragment->where.count;
      const DType type = targets[i].fragment->weight.dtype;
      targets[i].states.push_back(memory.view(type, {count}, at));
      at += state_bytes(count, type);
      more = true;
    }
  }
}

const char* purpose_of(Place place) { return place == Place::host ? "optimizer state (host)" : "optimizer state"; }

}  // namespace

const Parameter& OptimizerStep::parameter_of(const OwnedFragment& fragment) const {
  return table_.parameters()[static_cast<std::size_t>(fragment.where.parameter)];
}

OptimizerStep::OptimizerStep(const ParameterTable& table, const std::vector<std::string>& chosen,
                             const OptimizerMap& optimizers, const MatrixWork& work, Backend& backend,
                             Communicator& shard, Communicator& replicate, std::span<const OwnedFragment> fragments,
                             const HostState& host)
    : table_(table), backend_(backend), square_sums_(host.square_sums) {
  std::vector<std::vector<StateTensor>> names;  // of each fragment
  std::vector<HostStep::Need> needs;
  std::size_t bytes = 0, host_bytes = 0;
  for (const OwnedFragment& fragment : fragments) {
    targets_.push_back({&fragment, &optimizer_of(fragment.where, chosen, optimizers), {}});
    names.push_back(targets_.back().optimizer->states(parameter_of(fragment)));
    const bool away = fragment.place == Place::host;
    (away ? host_bytes : bytes) += state_bytes(fragment.where.count, fragment.weight.dtype) * names.back().size();
    if (away) needs.push_back({fragment.where.count, names.back().size()});
  }
  Device& device = backend.device();
  memory_ = device.memory().allocate(bytes, purpose_of(Place::device));
  {
    const NumaPreference near(device.numa_node());
    host_memory_ = device.host_memory().allocate(host_bytes, purpose_of(Place::host));
  }
  for (const Buffer* memory : {&memory_, &host_memory_}) {
    if (*memory) device.zero(device.stream(Resource::compute), memory->data(), memory->bytes());
  }
  place_states(std::move(names));
  if (!needs.empty()) {
    host_ = std::make_unique<HostStep>(device, backend.operators(), needs, host.bucket_bytes);
  }
  group_by_optimizer(fragments);
  matrices_ = std::make_unique<MatrixStep>(work, table, targets_, backend, shard, replicate, host_.get());
}

void OptimizerStep::place_states(std::vector<std::vector<StateTensor>> names) {
  place_states_of(Place::device, targets_, names, memory_);
  place_states_of(Place::host, targets_, names, host_memory_);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    for (std::size_t s = 0; s < names[i].size(); ++s) {
      states_.push_back({targets_[i].fragment, std::move(names[i][s].name), targets_[i].states[s]});
    }
  }
}

void OptimizerStep::group_by_optimizer(std::span<const OwnedFragment> fragments) {
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    const UpdateTarget& target = targets_[i];
    const OwnedFragment& owned = fragments[i];
    if (target.optimizer->layout(parameter_of(owned)) != OptimizerLayout::any_fragment) continue;
    const auto same = [&](const OfOptimizer& of) { return of.optimizer == target.optimizer; };
    auto of = std::find_if(as_they_are_.begin(), as_they_are_.end(), same);
    if (of == as_they_are_.end()) of = as_they_are_.insert(of, {target.optimizer, {}, {}, {}});
    const bool away = owned.place == Place::host;
    (away ? of->away : of->parts)
        .push_back({.parameter = &parameter_of(owned),
                    .optimizer = target.optimizer,
                    .begin = owned.where.begin,
                    .weight = owned.weight,
                    .gradient = owned.gradient,
                    .states = target.states,
                    .on_host = away});
  }
  for (OfOptimizer& of : as_they_are_) {
    if (host_) of.buckets = host_->cut(of.away, UpdatePass::whole);
  }
}

std::vector<PlanLine> OptimizerStep::plan(const ParameterTable& table, const std::vector<std::string>& chosen,
                                          const OptimizerMap& optimizers, const MatrixWork& work,
                                          const OperatorSet& operators, std::span<const Fragment> fragments,
                                          DType stored, const HostState& host) {
  std::size_t bytes = 0, host_bytes = 0;
  std::vector<HostStep::Need> needs;
  for (const Fragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.parameter)];
    const std::size_t states = optimizer_of(fragment, chosen, optimizers).states(parameter).size();
    const bool away = !host.places.empty() && host.places.at(static_cast<std::size_t>(fragment.unit)) == Place::host;
    (away ? host_bytes : bytes) += state_bytes(fragment.count, stored_type(parameter.kind, stored)) * states;
    if (away) needs.push_back({fragment.count, states});
  }
  std::vector<PlanLine> lines;
  const auto add = [&](PlanLine line) {
    if (line.bytes > 0) lines.push_back(std::move(line));
  };
  add({purpose_of(Place::device), Place::device, bytes});
  add({purpose_of(Place::host), Place::host, host_bytes});
  for (PlanLine& line : HostStep::plan(needs, host.bucket_bytes)) add(std::move(line));
  for (PlanLine& line : MatrixStep::plan(work, operators)) add(std::move(line));
  return lines;
}

// Run by run of gradients in memory, within a unit: the same calls, and so the same bits, wherever they lie.
void OptimizerStep::add_square_sum(StepScalars& scalars) {
  Stream& compute = backend_.device().stream(Resource::compute);
  Elementwise& elementwise = *backend_.operators().elementwise;
  std::int64_t run = 0, added = 0;  // of the runs on the host
  const auto add_known = [&] {
    if (run > added) elementwise.add_in_order(compute, square_sums_.slice(added, run - added), scalars.square_sum());
    added = run;
  };
  for (std::size_t i = 0; i < targets_.size();) {
    const OwnedFragment& first = *targets_[i].fragment;
    TensorView gradient = first.gradient;
    for (++i; i < targets_.size(); ++i) {
      const OwnedFragment& next = *targets_[i].fragment;
      if (next.where.unit != first.where.unit || next.gradient.dtype != gradient.dtype) break;
      if (static_cast<std::byte*>(gradient.data) + gradient.bytes() != next.gradient.data) break;
      gradient.shape = {gradient.elements() + next.gradient.elements()};
    }
    if (first.place == Place::host && square_sums_) {
      ++run;
      continue;
    }
    add_known();
    elementwise.square_sum(compute, gradient, scalars.square_sum());
  }
  add_known();
}

void OptimizerStep::update(const StepScalars& scalars, std::uint64_t step, double lr_factor) {
  const UpdateScalars shared{step, lr_factor, scalars.clip_scale(), scalars.finite()};
  if (host_) host_->begin();
  matrices_->run(shared, [&] {
    for (const OfOptimizer& of : as_they_are_) {
      std::vector<OptimizerUpdate> parts;
      parts.reserve(of.parts.size());
      for (const UpdatePart& part : of.parts) parts.push_back(update_of(part, UpdatePass::whole, shared));
      if (!parts.empty())
        of.optimizer->update_all(backend_.device().stream(Resource::compute), backend_.operators(), parts);
      if (host_) host_->run(of.buckets, UpdatePass::whole, shared);
    }
  });
  if (host_) host_->end();
}

Traffic OptimizerStep::traffic() const {
  Traffic lines = matrices_->traffic();
  if (!host_) return lines;
  for (TrafficLine& line : host_->traffic()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace ananke
