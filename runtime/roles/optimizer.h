// Role "optimizer": the maths of one update, and nothing else. The runtime brings the part of the parameter that
// layout() asks for, keeps the state tensors (and checkpoints them under their names), and takes the result back.
//
//   construct ─ per parameter: layout, cost, states ─ per step and parameter part: update(...)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/model/parameter_table.h"
#include "runtime/operators/operator_set.h"
#include "runtime/roles/context.h"

namespace ananke {

enum class OptimizerLayout { any_fragment, whole_matrix };

struct StateTensor {
  std::string name;  // as checkpointed: "exp_avg"; one f32 element per parameter element, starting at 0
};

struct OptimizerUpdate {
  const Parameter& parameter;
  std::int64_t begin;                  // first element of the part within the parameter
  TensorView weight, gradient;         // f32 [count]
  std::span<const TensorView> states;  // f32 [count] each, in the order of states()
  std::uint64_t step;                  // updates applied, this one included: from 1
  double lr_factor;                    // of the job's learning-rate schedule
  TensorView scale;                    // f32 [1], device: multiply the gradient by it
  TensorView finite;                   // i32 [1], device: 0: change nothing
};

class Optimizer {
 public:
  static constexpr const char* role = "optimizer";
  virtual ~Optimizer() = default;
  virtual OptimizerLayout layout(const Parameter& parameter) const = 0;
  virtual double cost(const Parameter& parameter) const = 0;  // any unit; sharing of work goes by it
  virtual std::vector<StateTensor> states(const Parameter& parameter) const = 0;
  virtual double learning_rate() const = 0;  // the configured lr, before the factor
  // Puts work on the stream; no allocation, no synchronisation, no peers.
  virtual void update(Stream& stream, const OperatorSet& operators, const OptimizerUpdate& a) = 0;
};

}  // namespace ananke
