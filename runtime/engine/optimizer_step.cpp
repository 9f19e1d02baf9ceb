#include "runtime/engine/optimizer_step.h"

#include <algorithm>

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
void place_states(std::span<UpdateTarget> targets, std::span<const std::vector<StateTensor>> states,
                  const Buffer& memory) {
  std::size_t at = 0;
  bool more = true;
  for (std::size_t s = 0; more; ++s) {
    more = false;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (s >= states[i].size()) continue;
      const std::int64_t count = targets[i].fragment->where.count;
      const DType type = targets[i].fragment->weight.dtype;
      targets[i].states.push_back(memory.view(type, {count}, at));
      at += state_bytes(count, type);
      more = true;
    }
  }
}

}  // namespace

OptimizerStep::OptimizerStep(const ParameterTable& table, const std::vector<std::string>& chosen,
                             const OptimizerMap& optimizers, const MatrixWork& work, Backend& backend,
                             Communicator& shard, Communicator& replicate, std::span<const OwnedFragment> fragments)
    : table_(table), backend_(backend) {
  std::size_t total = 0;
  for (const OwnedFragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.where.parameter)];
    Optimizer& optimizer = optimizer_of(fragment.where, chosen, optimizers);
    total += state_bytes(fragment.where.count, fragment.weight.dtype) * optimizer.states(parameter).size();
  }
  Device& device = backend.device();
  memory_ = device.memory().allocate(total, "optimizer state");
  if (memory_) device.zero(device.stream(Resource::compute), memory_.data(), memory_.bytes());

  std::vector<std::vector<StateTensor>> names;  // of each fragment
  for (const OwnedFragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.where.parameter)];
    targets_.push_back({&fragment, &optimizer_of(fragment.where, chosen, optimizers), {}});
    names.push_back(targets_.back().optimizer->states(parameter));
  }
  place_states(targets_, names, memory_);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    for (std::size_t s = 0; s < names[i].size(); ++s) {
      states_.push_back({targets_[i].fragment, std::move(names[i][s].name), targets_[i].states[s]});
    }
  }
  for (const UpdateTarget& target : targets_) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(target.fragment->where.parameter)];
    if (target.optimizer->layout(parameter) != OptimizerLayout::any_fragment) continue;
    const auto same = [&](const OfOptimizer& of) { return of.optimizer == target.optimizer; };
    auto of = std::find_if(as_they_are_.begin(), as_they_are_.end(), same);
    if (of == as_they_are_.end()) of = as_they_are_.insert(of, {target.optimizer, {}});
    of->targets.push_back(&target);
  }
  matrices_ = std::make_unique<MatrixStep>(work, table, targets_, backend, shard, replicate);
}

std::vector<PlanLine> OptimizerStep::plan(const ParameterTable& table, const std::vector<std::string>& chosen,
                                          const OptimizerMap& optimizers, const MatrixWork& work,
                                          const OperatorSet& operators, std::span<const Fragment> fragments,
                                          DType stored) {
  std::size_t total = 0;
  for (const Fragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.parameter)];
    total += state_bytes(fragment.count, stored_type(parameter.kind, stored)) *
             optimizer_of(fragment, chosen, optimizers).states(parameter).size();
  }
  std::vector<PlanLine> lines = {{"optimizer state", Place::device, total}};
  for (PlanLine& line : MatrixStep::plan(work, operators)) {
    if (line.bytes > 0) lines.push_back(std::move(line));
  }
  return lines;
}

void OptimizerStep::add_square_sum(StepScalars& scalars) {
  Stream& compute = backend_.device().stream(Resource::compute);
  for (std::size_t i = 0; i < targets_.size();) {  // neighbours in memory at once
    TensorView gradient = targets_[i].fragment->gradient;
    for (++i; i < targets_.size(); ++i) {
      const TensorView& next = targets_[i].fragment->gradient;
      if (next.dtype != gradient.dtype || static_cast<std::byte*>(gradient.data) + gradient.bytes() != next.data) break;
      gradient.shape = {gradient.elements() + next.elements()};
    }
    backend_.operators().elementwise->square_sum(compute, gradient, scalars.square_sum());
  }
}

void OptimizerStep::update(const StepScalars& scalars, std::uint64_t step, double lr_factor) {
  const UpdateScalars shared{step, lr_factor, scalars.clip_scale(), scalars.finite()};
  matrices_->run(shared, [&] {
    for (const OfOptimizer& of : as_they_are_) {
      std::vector<OptimizerUpdate> parts;
      parts.reserve(of.targets.size());
      for (const UpdateTarget* target : of.targets) {
        const OwnedFragment& owned = *target->fragment;
        const Parameter& parameter = table_.parameters()[static_cast<std::size_t>(owned.where.parameter)];
        parts.push_back({parameter, owned.where.begin, owned.weight, owned.gradient, target->states, step, lr_factor,
                         shared.scale, shared.finite});
      }
      of.optimizer->update_all(backend_.device().stream(Resource::compute), backend_.operators(), parts);
    }
  });
}

}  // namespace ananke
