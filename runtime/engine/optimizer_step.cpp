#include "runtime/engine/optimizer_step.h"

namespace ananke {
namespace {

constexpr std::int64_t alignment = 64;  // elements

std::int64_t aligned(std::int64_t elements) { return (elements + alignment - 1) / alignment * alignment; }

Optimizer& optimizer_of(const Fragment& fragment, const std::vector<std::string>& chosen,
                        const OptimizerMap& optimizers) {
  return *optimizers.at(chosen[static_cast<std::size_t>(fragment.parameter)]);
}

}  // namespace

OptimizerStep::OptimizerStep(const ParameterTable& table, const std::vector<std::string>& chosen,
                             const OptimizerMap& optimizers, const MatrixWork& work, Backend& backend,
                             Communicator& shard, Communicator& replicate, std::span<const OwnedFragment> fragments)
    : table_(table), backend_(backend) {
  std::int64_t total = 0;
  for (const OwnedFragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.where.parameter)];
    Optimizer& optimizer = optimizer_of(fragment.where, chosen, optimizers);
    total += aligned(fragment.where.count) * static_cast<std::int64_t>(optimizer.states(parameter).size());
  }
  Device& device = backend.device();
  memory_ = device.memory().allocate(static_cast<std::size_t>(total) * sizeof(float), "optimizer state");
  if (memory_) device.zero(device.stream(Resource::compute), memory_.data(), memory_.bytes());

  std::int64_t at = 0;
  for (const OwnedFragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.where.parameter)];
    UpdateTarget target{&fragment, &optimizer_of(fragment.where, chosen, optimizers), {}};
    for (StateTensor& state : target.optimizer->states(parameter)) {
      const TensorView values =
          memory_.view(DType::f32, {fragment.where.count}, static_cast<std::size_t>(at) * sizeof(float));
      target.states.push_back(values);
      states_.push_back({&fragment, std::move(state.name), values});
      at += aligned(fragment.where.count);
    }
    if (target.optimizer->layout(parameter) == OptimizerLayout::any_fragment) fragments_.push_back(targets_.size());
    targets_.push_back(std::move(target));
  }
  matrices_ = std::make_unique<MatrixStep>(work, table, targets_, backend, shard, replicate);
}

std::vector<PlanLine> OptimizerStep::plan(const ParameterTable& table, const std::vector<std::string>& chosen,
                                          const OptimizerMap& optimizers, const MatrixWork& work,
                                          const OperatorSet& operators, std::span<const Fragment> fragments) {
  std::int64_t total = 0;
  for (const Fragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.parameter)];
    total += aligned(fragment.count) *
             static_cast<std::int64_t>(optimizer_of(fragment, chosen, optimizers).states(parameter).size());
  }
  std::vector<PlanLine> lines = {{"optimizer state", Place::device, static_cast<std::uint64_t>(total) * sizeof(float)}};
  for (PlanLine& line : MatrixStep::plan(work, operators)) {
    if (line.bytes > 0) lines.push_back(std::move(line));
  }
  return lines;
}

void OptimizerStep::add_square_sum(StepScalars& scalars) {
  Stream& compute = backend_.device().stream(Resource::compute);
  for (const UpdateTarget& target : targets_) {
    backend_.operators().elementwise->square_sum(compute, target.fragment->gradient, scalars.square_sum());
  }
}

void OptimizerStep::update(const StepScalars& scalars, std::uint64_t step, double lr_factor) {
  const UpdateScalars shared{step, lr_factor, scalars.clip_scale(), scalars.finite()};
  Stream& compute = backend_.device().stream(Resource::compute);
  matrices_->run(shared, [&] {
    for (const std::size_t i : fragments_) {
      const UpdateTarget& target = targets_[i];
      const OwnedFragment& owned = *target.fragment;
      target.optimizer->update(
          compute, backend_.operators(),
          {table_.parameters()[static_cast<std::size_t>(owned.where.parameter)], owned.where.begin, owned.weight,
           owned.gradient, target.states, step, lr_factor, shared.scale, shared.finite});
    }
  });
}

}  // namespace ananke
