#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// What becomes of the routers' statistics (operators/router.h): losses that keep the load even, their gradients, and
// the bias of balancing without a loss. All f64 unless said otherwise; L: MoE layers, E: experts.
class RouterBalance {
 public:
  // One microbatch of this rank, to be summed over ranks: total = {tokens per expert over all layers, then `tokens`,
  // then `targets`}.
  struct Collect {
    TensorView statistics;  // [L, 2E + 2]
    std::int64_t tokens;    // of the microbatch
    std::int64_t targets;   // valid ones
    TensorView total;       // [E + 2]
  };
  // With total over all ranks: C of each expert, T tokens, N_m targets; share = N_m scale[0].
  //   auxiliary = auxiliary_coefficient E sum over e (C[e] / (L T)) (sum of q[e] over layers and tokens / (L T)) share
  //   z         = z_coefficient (sum over layers and tokens of squared log-sums / T) share
  // The first is transformers' load_balancing_loss_func (models/qwen3_moe; Switch Transformer, arXiv 2101.03961,
  // eq. 4-6) over all layers together, C having no gradient; the second is the router z-loss (ST-MoE, arXiv
  // 2202.08906, eq. 5), a mean over tokens per layer, summed over layers. factors = their gradients for
  // Router::Backward; losses += the part of both that is this rank's tokens', so that their sum over ranks is whole.
  // No tokens: all 0.
  struct Factors {
    TensorView statistics;  // [L, 2E + 2], of this rank
    TensorView total;       // [E + 2], over all ranks
    TensorView scale;       // f32 [1]: 1 / valid targets of the step
    double auxiliary_coefficient, z_coefficient;
    TensorView factors;  // f32 [E + 1]
    TensorView losses;   // [2], added to: {auxiliary, z}
  };
  // load = per layer {tokens per expert, sum of entropies} over M microbatches.
  struct Load {
    TensorView statistics;  // [M, L, 2E + 2]
    TensorView load;        // [L, E + 1]
  };
  // Per layer l, with counts c over all ranks and their mean: delta = rate[l] sign(mean - c), bias += delta - mean of
  // delta (DeepSeek-V3, arXiv 2408.15664, with the mean removed). Nothing where finite[0] is 0.
  struct UpdateBias {
    TensorView load;    // [L, E + 1]
    TensorView rate;    // f32 [L]
    TensorView finite;  // i32 [1]
    TensorView bias;    // f32 [L, E]
  };
  // Per layer {smallest load, largest load, sum of loads, sum of entropies, smallest bias, largest bias}.
  static constexpr std::int64_t summary_size = 6;
  struct Summarise {
    TensorView load;     // [L, E + 1]
    TensorView bias;     // f32 [L, E] or empty: zeros
    TensorView summary;  // [L, 6]
  };
  virtual ~RouterBalance() = default;
  virtual void collect(Stream& stream, const Collect& a) = 0;
  virtual void factors(Stream& stream, const Factors& a) = 0;
  virtual void load(Stream& stream, const Load& a) = 0;
  virtual void update_bias(Stream& stream, const UpdateBias& a) = 0;
  virtual void summarise(Stream& stream, const Summarise& a) = 0;
};

}  // namespace ananke
