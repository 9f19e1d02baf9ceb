// Updates what this rank owns: holds the optimizers' state tensors, brings each optimizer the parts it asks for.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/step_scalars.h"
#include "runtime/roles/optimizer.h"
#include "runtime/roles/parameters.h"

namespace ananke {

using OptimizerMap = std::map<std::string, std::unique_ptr<Optimizer>>;  // by plugin name

class OptimizerStep {
 public:
  // `chosen`: the optimizer's name per parameter (optimizer_rules.h). All arguments outlive the step.
  OptimizerStep(const ParameterTable& table, const std::vector<std::string>& chosen, const OptimizerMap& optimizers,
                Backend& backend, std::span<const OwnedFragment> fragments);
  static std::vector<PlanLine> plan(const ParameterTable& table, const std::vector<std::string>& chosen,
                                    const OptimizerMap& optimizers, std::span<const Fragment> fragments);

  // Adds the squares of the owned gradients to scalars.square_sum().
  void add_square_sum(StepScalars& scalars);
  // One update; `step` counts applied updates, from 1. Changes nothing where scalars.finite() is 0.
  void update(const StepScalars& scalars, std::uint64_t step, double lr_factor);

  // What a checkpoint keeps, besides the weights.
  struct State {
    const OwnedFragment* fragment;
    std::string name;
    TensorView values;  // f32 [count]
  };
  std::span<const State> states() const { return states_; }

 private:
  struct Part {
    const OwnedFragment* fragment;
    Optimizer* optimizer;
    std::vector<TensorView> states;
  };
  const ParameterTable& table_;
  Backend& backend_;
  Buffer memory_;
  std::vector<Part> parts_;
  std::vector<State> states_;
};

}  // namespace ananke
