#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// How a router's logits become decisions and weights: a property of the model, the same on every rank and mesh.
struct RouterRule {
  enum class Score {
    softmax,  // s = softmax(logits)
    sigmoid,  // s = sigmoid(logits), each expert by itself (DeepSeek-V3)
  };
  enum class Grouping {
    none,                  // the k best of all experts
    groups_limited_top_k,  // the k best among the experts of the `kept_groups` best groups (DeepSeek-V3)
    top_k_per_group,       // the k / groups best of every group
  };
  Score score = Score::softmax;
  bool normalise = true;      // divide the k chosen scores by their sum + 1e-20
  double scaling_factor = 1;  // of the weights, after that
  Grouping grouping = Grouping::none;
  std::int64_t groups = 1;       // contiguous, of experts / groups each
  std::int64_t kept_groups = 1;  // of groups_limited_top_k
  // Decisions of a sizing run: token t, choice j -> expert (t k + j) mod experts, whatever the scores say.
  bool forced_balance = false;
};

// Top-k router. logits = x gate^T over E experts and scores s in f32; what is chosen by is s, or s + bias. Ties go to
// the lower index, of experts and of groups. A group's value is the sum of its two best (DeepSeek-V3, arXiv
// 2412.19437, 2.1.2). Choices stand largest first; with top_k_per_group group by group, largest first within each.
// Weights are the chosen s (never the bias), normalised and scaled by the rule. The decision itself has no gradient.
//
// `statistics` are sums over the tokens of one call, for the losses that keep the load even and for reports:
//   [0, E)      tokens that chose expert e
//   [E, 2E)     q of expert e: s for softmax, s / (sum of s + 1e-20) for sigmoid
//   [2E]        (log of the sum of e^logits)^2
//   [2E + 1]    entropy of q, in nats
// Their gradients come back as `factors`, so that a loss made of sums over layers, microbatches and ranks is exact.
class Router {
 public:
  struct Sizes {
    std::int64_t tokens, hidden, experts, k;
  };
  static std::int64_t statistics_size(std::int64_t experts) { return 2 * experts + 2; }
  struct Forward {
    TensorView x;     // [T, H]
    TensorView gate;  // [E, H]
    TensorView bias;  // [E] or empty
    RouterRule rule;
    bool replay;            // indices are an input: the decision is not made again, weights follow from it
    TensorView indices;     // i32 [T, k], output (input when replay)
    TensorView weights;     // [T, k]
    TensorView counts;      // i32 [E]: tokens per expert
    TensorView statistics;  // f64 [2E + 2] or empty
    Region saved, workspace;
  };
  struct Backward {
    TensorView x, gate;
    RouterRule rule;
    TensorView indices, weights;
    TensorView dweights;  // [T, k]
    TensorView factors;   // [E + 1] or empty: d loss / d statistics of q of each expert, and of the squared log-sum
    TensorView dx;        // [T, H], *added to*: it is one of two ways into the layer's input
    TensorView dgate;     // [E, H], added to
    Region saved, workspace;
  };
  virtual ~Router() = default;
  virtual std::size_t saved(const Sizes& s) const = 0;
  virtual std::size_t workspace(const Sizes& s) const = 0;
  virtual void forward(Stream& stream, const Forward& a) = 0;
  virtual void backward(Stream& stream, const Backward& a) = 0;
};

}  // namespace ananke
