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

// What is on the host, and how it travels.
struct HostState {
  std::vector<Place> places = {};         // by unit, as Parameters::place_of(); for plan()
  std::uint64_t bucket_bytes = 64 << 20;  // HostStep
  TensorView square_sums = {};            // Parameters::square_sums()
};

class OptimizerStep {
 public:
  // `chosen`: the optimizer's name per parameter (optimizer_rules.h). `work` is of this rank; `fragments` are what the
  // work calls this rank's. All arguments outlive the step.
  OptimizerStep(const ParameterTable& table, const std::vector<std::string>& chosen, const OptimizerMap& optimizers,
                const MatrixWork& work, Backend& backend, Communicator& shard, Communicator& replicate,
                std::span<const OwnedFragment> fragments, const HostState& host = {});
  // `stored`: of wire segments (compute_type.h); a state is of its weight's type.
  static std::vector<PlanLine> plan(const ParameterTable& table, const std::vector<std::string>& chosen,
                                    const OptimizerMap& optimizers, const MatrixWork& work,
                                    const OperatorSet& operators, std::span<const Fragment> fragments, DType stored,
                                    const HostState& host = {});

  // Adds the squares of the owned gradients to scalars.square_sum().
  void add_square_sum(StepScalars& scalars);
  // One update; `step` counts applied updates, from 1. Changes nothing where scalars.finite() is 0. All ranks call it
  // alike.
  void update(const StepScalars& scalars, std::uint64_t step, double lr_factor);
  // What it received from other ranks, and what it moved to the host and back, since start.
  Traffic traffic() const;

  // What a checkpoint keeps, besides the weights.
  struct State {
    const OwnedFragment* fragment;
    std::string name;
    TensorView values;  // [count], of the weight's type, where the fragment is
  };
  std::span<const State> states() const { return states_; }

 private:
  void place_states(std::vector<std::vector<StateTensor>> names);
  void group_by_optimizer(std::span<const OwnedFragment> fragments);
  const Parameter& parameter_of(const OwnedFragment& fragment) const;

  const ParameterTable& table_;
  Backend& backend_;
  const TensorView square_sums_;
  Buffer memory_, host_memory_;
  std::unique_ptr<HostStep> host_;     // null: no fragment is there
  std::vector<UpdateTarget> targets_;  // by fragment
  struct OfOptimizer {
    Optimizer* optimizer;
    std::vector<UpdatePart> parts;  // on the device
    std::vector<UpdatePart> away;   // on the host
    HostStep::Buckets buckets;      // of those
  };
  std::vector<OfOptimizer> as_they_are_;  // what is updated as it lies here
  std::vector<State> states_;
  std::unique_ptr<MatrixStep> matrices_;
};

}  // namespace ananke
