// What a layer keeps from its forward to its backward, and what is made again before the backward from what is kept.
// Routing decisions are always kept; experts' outputs and SwiGLU's products never: no gradient needs them
// (operators/grouped_mlp.h).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace ananke {

class Training;

// Operators of a layer whose outputs its backward needs, in the order in which forward runs them.
enum class LayerOperator : unsigned {
  norms,        // inputs of attention and MLP, normalised: [T, H] each, and their scales
  projections,  // q, k, v
  attention,    // its output and statistics
  residual,     // the sum behind attention, [T, H]; made again by the output projection
  router,       // weights and scores of what was decided
  dispatch,     // rows of the experts, and where they came from; made again by another exchange of tokens
  grouped_mlp,  // outputs of gate and up, of experts or of the dense MLP
};

class LayerOperators {
 public:
  constexpr LayerOperators() = default;
  constexpr LayerOperators(std::initializer_list<LayerOperator> operators) {
    for (const LayerOperator one : operators) add(one);
  }
  static constexpr LayerOperators all() {
    LayerOperators operators;
    operators.bits_ = bit(LayerOperator::grouped_mlp) * 2 - 1;
    return operators;
  }
  constexpr void add(LayerOperator one) { bits_ |= bit(one); }
  constexpr bool has(LayerOperator one) const { return (bits_ & bit(one)) != 0; }
  constexpr bool none() const { return bits_ == 0; }
  bool operator==(const LayerOperators&) const = default;

 private:
  static constexpr unsigned bit(LayerOperator one) { return 1u << static_cast<unsigned>(one); }
  unsigned bits_ = 0;
};

struct Recompute {
  std::vector<LayerOperators> made_again = {};  // by decoder layer; empty: nothing in any
  LayerOperators of(int layer) const {
    return made_again.empty() ? LayerOperators{} : made_again.at(static_cast<std::size_t>(layer));
  }
  bool any(LayerOperator one) const;  // in some layer
  static Recompute everything(std::int64_t layers);
};

// As training.recompute, recompute_operators and recompute_layers say, which have been checked (config/validate.h).
Recompute recompute_of(const Training& training, std::int64_t layers);
// For people: "SELECTIVE (norms, dispatch, grouped_mlp), layers 0-3 NONE".
std::string recompute_text(const Training& training);

}  // namespace ananke
