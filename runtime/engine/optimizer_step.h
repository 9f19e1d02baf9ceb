// Updates what this rank owns: holds the optimizers' state tensors, brings each optimizer the parts it asks for.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/matrix_step.h"
#include "runtime/engine/step_scalars.h"

namespace ananke {

class OptimizerStep {
 public:
  // `chosen`: the optimizer's name per parameter (optimizer_rules.h). `work` is of this rank; `fragments` are what the
  // work calls this rank's. All arguments outlive the step.
  OptimizerStep(const ParameterTable& table, const std::vector<std::string>& chosen, const OptimizerMap& optimizers,
                const MatrixWork& work, Backend& backend, Communicator& shard, Communicator& replicate,
                std::span<const OwnedFragment> fragments);
  // `stored`: of wire segments (compute_type.h); a state is of its weight's type.
  static std::vector<PlanLine> plan(const ParameterTable& table, const std::vector<std::string>& chosen,
                                    const OptimizerMap& optimizers, const MatrixWork& work,
                                    const OperatorSet& operators, std::span<const Fragment> fragments, DType stored);

  // Adds the squares of the owned gradients to scalars.square_sum().
  void add_square_sum(StepScalars& scalars);
  // One update; `step` counts applied updates, from 1. Changes nothing where scalars.finite() is 0. All ranks call it
  // alike.
  void update(const StepScalars& scalars, std::uint64_t step, double lr_factor);
  // What it received from other ranks since start.
  Traffic traffic() const { return matrices_->traffic(); }

  // What a checkpoint keeps, besides the weights.
  struct State {
    const OwnedFragment* fragment;
    std::string name;
    TensorView values;  // [count], of the weight's type
  };
  std::span<const State> states() const { return states_; }

 private:
  const ParameterTable& table_;
  Backend& backend_;
  Buffer memory_;
  std::vector<UpdateTarget> targets_;  // by fragment
  struct OfOptimizer {
    Optimizer* optimizer;
    std::vector<const UpdateTarget*> targets;
  };
  std::vector<OfOptimizer> as_they_are_;  // what is updated as it lies here
  std::vector<State> states_;
  std::unique_ptr<MatrixStep> matrices_;
};

}  // namespace ananke
