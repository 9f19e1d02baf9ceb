#include "runtime/engine/optimizer_step.h"

#include "runtime/base/error.h"

namespace ananke {
namespace {

constexpr std::int64_t alignment = 64;  // elements

std::int64_t aligned(std::int64_t elements) { return (elements + alignment - 1) / alignment * alignment; }

Optimizer& optimizer_of(const Fragment& fragment, const std::vector<std::string>& chosen,
                        const OptimizerMap& optimizers) {
  return *optimizers.at(chosen[static_cast<std::size_t>(fragment.parameter)]);
}

void check_layout(const Parameter& parameter, const Fragment& fragment, const Optimizer& optimizer,
                  const std::string& name) {
  if (optimizer.layout(parameter) == OptimizerLayout::any_fragment) return;
  if (fragment.begin == 0 && fragment.count == parameter.shape.elements()) return;
  fail(ErrorKind::config,
       "optimizer {} needs the whole of {} {}, but this mesh cuts it: elements {} to {} are on one rank; use a mesh "
       "with "
       "shard: 1 for it, or another optimizer",
       name, parameter.name, to_string(parameter.shape), fragment.begin, fragment.begin + fragment.count);
}

}  // namespace

OptimizerStep::OptimizerStep(const ParameterTable& table, const std::vector<std::string>& chosen,
                             const OptimizerMap& optimizers, Backend& backend, std::span<const OwnedFragment> fragments)
    : table_(table), backend_(backend) {
  std::int64_t total = 0;
  for (const OwnedFragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.where.parameter)];
    Optimizer& optimizer = optimizer_of(fragment.where, chosen, optimizers);
    check_layout(parameter, fragment.where, optimizer, chosen[static_cast<std::size_t>(fragment.where.parameter)]);
    total += aligned(fragment.where.count) * static_cast<std::int64_t>(optimizer.states(parameter).size());
  }
  Device& device = backend.device();
  memory_ = device.memory().allocate(static_cast<std::size_t>(total) * sizeof(float), "optimizer state");
  if (memory_) device.zero(device.stream(Resource::compute), memory_.data(), memory_.bytes());

  std::int64_t at = 0;
  for (const OwnedFragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.where.parameter)];
    Part part{&fragment, &optimizer_of(fragment.where, chosen, optimizers), {}};
    for (StateTensor& state : part.optimizer->states(parameter)) {
      const TensorView values =
          memory_.view(DType::f32, {fragment.where.count}, static_cast<std::size_t>(at) * sizeof(float));
      part.states.push_back(values);
      states_.push_back({&fragment, std::move(state.name), values});
      at += aligned(fragment.where.count);
    }
    parts_.push_back(std::move(part));
  }
}

std::vector<PlanLine> OptimizerStep::plan(const ParameterTable& table, const std::vector<std::string>& chosen,
                                          const OptimizerMap& optimizers, std::span<const Fragment> fragments) {
  std::int64_t total = 0;
  for (const Fragment& fragment : fragments) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(fragment.parameter)];
    total += aligned(fragment.count) *
             static_cast<std::int64_t>(optimizer_of(fragment, chosen, optimizers).states(parameter).size());
  }
  return {{"optimizer state", Place::device, static_cast<std::uint64_t>(total) * sizeof(float)}};
}

void OptimizerStep::add_square_sum(StepScalars& scalars) {
  Stream& compute = backend_.device().stream(Resource::compute);
  for (const Part& part : parts_) {
    backend_.operators().elementwise->square_sum(compute, part.fragment->gradient, scalars.square_sum());
  }
}

void OptimizerStep::update(const StepScalars& scalars, std::uint64_t step, double lr_factor) {
  Stream& compute = backend_.device().stream(Resource::compute);
  for (const Part& part : parts_) {
    const OwnedFragment& owned = *part.fragment;
    part.optimizer->update(
        compute, backend_.operators(),
        {table_.parameters()[static_cast<std::size_t>(owned.where.parameter)], owned.where.begin, owned.weight,
         owned.gradient, part.states, step, lr_factor, scalars.clip_scale(), scalars.finite()});
  }
}

}  // namespace ananke
