// Role "optimizer": the maths of one update, and nothing else. The runtime brings the part of the parameter that
// layout() asks for, keeps the state tensors (and checkpoints them under their names), and takes the result back.
// Sharding, the network and where state lives are none of its business.
//
//   construct ─ per parameter: layout, cost, states, matrix_rows
//   per step    any_fragment:  update_all(parts), which calls update(part) for each where a plugin has no better
//               whole_matrix:  per fragment   prepare(part, transfer)     elementwise, where the state is
//                              per batch      transform(matrices)         whole matrices of one shape, on their owner
//                              per fragment   apply(part, direction)      elementwise, where the weight is
//               Of what prepare() is given `weight` is empty, of what apply() is given `gradient` and `states` are:
//               where they wait on the host each travels once. A fragment may come in parts, in either layout.
//
// All calls put work on the stream and return: no allocation, no synchronisation, no peers. Everything is f32, but that
// weight, gradient and states of a part may all three be of a type that stores_in() says. Where the step is not finite
// (finite[0] is 0 on the device) no weight and no state may change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/model/parameter_table.h"
#include "runtime/operators/operator_set.h"
#include "runtime/roles/context.h"

namespace ananke {

enum class OptimizerLayout { any_fragment, whole_matrix };

struct StateTensor {
  std::string name;  // as checkpointed: "exp_avg"; one element per parameter element, starting at 0
};

// A part of one parameter: elements [begin, begin + count). Of a whole_matrix layout it lies within one matrix.
struct OptimizerUpdate {
  const Parameter& parameter;
  std::int64_t begin;                  // first element of the part within the parameter
  TensorView weight, gradient;         // [count] of one type
  std::span<const TensorView> states;  // [count] of the same type each, in the order of states()
  std::uint64_t step;                  // updates applied, this one included: from 1
  double lr_factor;                    // of the job's learning-rate schedule
  TensorView scale;                    // f32 [1], device: multiply the gradient by it
  TensorView finite;                   // i32 [1], device: 0: change nothing
};

// How many of the first parts lie one behind the other in weight, gradient and every state, and are of one type: at
// least 1 of any.
inline std::size_t neighbours(std::span<const OptimizerUpdate> parts) {
  const auto behind = [](const TensorView& a, const TensorView& b) {
    return a.dtype == b.dtype && static_cast<std::byte*>(a.data) + a.bytes() == b.data;
  };
  const auto follows = [&](const OptimizerUpdate& a, const OptimizerUpdate& b) {
    return behind(a.weight, b.weight) && behind(a.gradient, b.gradient) &&
           std::equal(a.states.begin(), a.states.end(), b.states.begin(), b.states.end(), behind);
  };
  std::size_t count = std::min<std::size_t>(1, parts.size());
  while (count < parts.size() && follows(parts[count - 1], parts[count])) ++count;
  return count;
}

// Whole matrices of one shape, one behind the other, of any parameters of that layout.
struct MatrixBatch {
  TensorView matrices;  // f32 [n, rows, columns]: what prepare() wrote; becomes the direction, in place
  Region workspace;     // of transform_workspace(n, rows, columns) bytes
  TensorView finite;    // as above
};

class Optimizer {
 public:
  static constexpr const char* role = "optimizer";
  virtual ~Optimizer() = default;
  // Throws Error(config) for a parameter that it cannot update.
  virtual OptimizerLayout layout(const Parameter& parameter) const = 0;
  // Of updating the whole parameter, in any unit that is the same for all: sharing of work goes by it.
  virtual double cost(const Parameter& parameter) const = 0;
  virtual std::vector<StateTensor> states(const Parameter& parameter) const = 0;
  virtual double learning_rate() const = 0;  // the configured lr, before the factor
  // Does it update weights of this type, with gradients and states of the same? Pure.
  virtual bool stores_in(DType type) const { return type == DType::f32; }

  // any_fragment.
  virtual void update(Stream&, const OperatorSet&, const OptimizerUpdate&) { missing("update"); }
  // All parts that this rank updates with this optimizer, in the order of memory. Where weights, gradients and states
  // of one part end, those of the next often begin: an optimizer that treats both alike may take them as one
  // (neighbours()).
  virtual void update_all(Stream& stream, const OperatorSet& operators, std::span<const OptimizerUpdate> parts) {
    for (const OptimizerUpdate& part : parts) update(stream, operators, part);
  }

  // whole_matrix. Rows of one matrix: a parameter [rows, columns] is rows / matrix_rows() independent ones.
  virtual std::int64_t matrix_rows(const Parameter& parameter) const { return parameter.shape[0]; }
  virtual std::size_t transform_workspace(const OperatorSet&, std::int64_t count, std::int64_t rows,
                                          std::int64_t columns) const {
    missing("transform_workspace", count, rows, columns);
  }
  // Advances the state and writes this part of what transform() takes into `transfer`, f32 [count].
  virtual void prepare(Stream&, const OperatorSet&, const OptimizerUpdate&, const TensorView& /*transfer*/) {
    missing("prepare");
  }
  // What a matrix becomes must not depend on the others of its batch: the runtime chooses them.
  virtual void transform(Stream&, const OperatorSet&, const MatrixBatch&) { missing("transform"); }
  // `direction`, f32 [count]: this part of what transform() made.
  virtual void apply(Stream&, const OperatorSet&, const OptimizerUpdate&, const TensorView& /*direction*/) {
    missing("apply");
  }

 private:
  template <class... Ignored>
  [[noreturn]] static void missing(const char* method, const Ignored&...) {
    fail(ErrorKind::plugin, "it has no {}(), which the layout it asks for needs (runtime/roles/optimizer.h)", method);
  }
};

}  // namespace ananke
