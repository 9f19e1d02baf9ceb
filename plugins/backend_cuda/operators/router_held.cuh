// The router's kernels where a token's experts fit into the registers of a warp: expert e is held by lane e % 32, as
// its number e / 32 of `Held`. For rules without groups, and at most 32 choices. Numbers are made and added as by the
// general kernels (router.cu): decisions and weights have the same bits.
#pragma once

#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "plugins/backend_cuda/operators/router_choice.cuh"
#include "plugins/backend_cuda/operators/router_parts.cuh"

namespace ananke::cuda {

inline constexpr int held_threads = 256;

// body(integral_constant) with how many experts a lane holds, 0 where they do not fit.
template <class Body>
void with_held(std::int64_t experts, std::int64_t k, const RouterRule& rule, const Body& body) {
  if (rule.grouping != RouterRule::Grouping::none || experts > 256 || k > 32) {
    body(std::integral_constant<int, 0>{});
  } else if (experts <= 32) {
    body(std::integral_constant<int, 1>{});
  } else if (experts <= 64) {
    body(std::integral_constant<int, 2>{});
  } else if (experts <= 128) {
    body(std::integral_constant<int, 4>{});
  } else {
    body(std::integral_constant<int, 8>{});
  }
}

// Expert e's number, in every lane.
template <int Held>
__device__ float held_by(const float (&values)[Held], int e) {
  unsigned bits = 0;  // by masks: a choice among elements of an array would put it into memory
#pragma unroll
  for (int u = 0; u < Held; ++u) bits |= __float_as_uint(values[u]) & (e / 32 == u ? ~0u : 0u);
  return __uint_as_float(__shfl_sync(all_lanes, bits, e % 32));
}

// Of experts in registers the one that best_of() (router_choice.cuh) gives. `open`: a bit for each of the lane's;
// `order`: 0 is NaN.
template <int Held>
__device__ int best_held(const unsigned (&order)[Held], unsigned open, bool nan) {
  const auto lane = static_cast<unsigned>(threadIdx.x % 32);
  unsigned top = 0, best = ~0u;
#pragma unroll
  for (int u = 0; u < Held; ++u) {
    if (open >> u & 1) top = max(top, order[u]);
  }
  top = __reduce_max_sync(all_lanes, top);
#pragma unroll
  for (int u = Held - 1; u >= 0; --u) {
    if ((open >> u & 1) && order[u] == top) best = lane + u * 32;
  }
  best = __reduce_min_sync(all_lanes, best);
  if (!nan) return static_cast<int>(best);
  unsigned first = ~0u, of_first = 1;
#pragma unroll
  for (int u = Held - 1; u >= 0; --u) {
    const bool is_open = (open >> u & 1) != 0;
    first = is_open ? lane + u * 32 : first;
    of_first = is_open ? order[u] : of_first;
  }
  const unsigned lowest = __reduce_min_sync(all_lanes, first);
  return static_cast<int>(__any_sync(all_lanes, first == lowest && of_first == 0) ? lowest : best);
}

// Logits of a token as they lie in memory, loaded while the token before is worked on.
template <int Held>
struct HeldLogits {
  float high[Held], middle[Held], low[Held];

  __device__ void load(const Decision& n, std::int64_t t) {
    const float* from = n.logits ? n.logits + t * router_parts * n.stride : n.rows + t * n.experts;
#pragma unroll
    for (int u = 0; u < Held; ++u) {
      const int e = static_cast<int>(threadIdx.x) % 32 + u * 32;
      if (e >= n.experts) continue;
      high[u] = from[e];
      if (!n.logits) continue;
      middle[u] = from[n.stride + e];
      low[u] = from[2 * n.stride + e];
    }
  }
  __device__ float at(const Decision& n, int u) const { return n.logits ? low[u] + middle[u] + high[u] : high[u]; }
};

// A warp's work on its tokens: scores and what is summed of them, choices and weights.
template <int Held>
struct HeldTokens {
  const Decision& n;
  const FaultSink& faults;
  const int lane = threadIdx.x % 32;
  float scores[Held];
  double q[Held] = {};                // statistics
  int chosen[Held] = {};              // how often
  double squares = 0, entropies = 0;  // this lane's part
  // Of the token at place `lane` of those that are summed up together: what its log-sum is made of.
  float shift = 0;
  double sum = 1;

  __device__ __forceinline__ HeldTokens(const Decision& n_, const FaultSink& faults_) : n(n_), faults(faults_) {}
  __device__ __forceinline__ bool exists(int u) const { return lane + u * 32 < n.experts; }
  __device__ __forceinline__ bool softmax() const { return n.rule.score == RouterRule::Score::softmax; }

  __device__ __forceinline__ void score(std::int64_t t, int place, const HeldLogits<Held>& from) {
    float logits[Held], most = -INFINITY;
#pragma unroll
    for (int u = 0; u < Held; ++u) {
      logits[u] = exists(u) ? from.at(n, u) : -INFINITY;
      most = fmaxf(most, logits[u]);
    }
    most = warp_max(most);
    double total = 0;
#pragma unroll
    for (int u = 0; u < Held; ++u) {
      scores[u] = exists(u) ? expf(logits[u] - most) : 0.0f;
      total += static_cast<double>(scores[u]);
    }
    total = warp_sum(total);
    if (softmax()) {
      const auto inverse = static_cast<float>(1 / total);
#pragma unroll
      for (int u = 0; u < Held; ++u) {
        scores[u] *= inverse;
        if (!exists(u)) continue;
        entropies -= static_cast<double>(scores[u]) * static_cast<double>(logits[u]);
        q[u] += static_cast<double>(scores[u]);
      }
    } else {
      sigmoid(logits);
    }
    float* row = n.rows + t * n.experts;
#pragma unroll
    for (int u = 0; u < Held; ++u) {
      if (exists(u) && (softmax() || n.logits)) row[lane + u * 32] = softmax() ? scores[u] : logits[u];
    }
    const bool own = lane == place;
    shift = own ? most : shift;
    sum = own ? total : sum;
  }

  __device__ __forceinline__ void sigmoid(const float (&logits)[Held]) {
    double total = 0;
#pragma unroll
    for (int u = 0; u < Held; ++u) {
      scores[u] = exists(u) ? 1.0f / (1.0f + expf(-logits[u])) : 0.0f;
      total += static_cast<double>(scores[u]);
    }
    if (!n.sums) return;
    total = warp_sum(total) + static_cast<double>(router_epsilon);
#pragma unroll
    for (int u = 0; u < Held; ++u) {
      const double share = static_cast<double>(scores[u]) / total;
      q[u] += share;
      if (share > 0) entropies -= share * log(share);
    }
  }

  // Log-sums of the tokens [begin, begin + count), a lane for each.
  __device__ __forceinline__ void sum_up(std::int64_t begin, int count) {
    const double log_sum = lane < count ? static_cast<double>(shift) + log(sum) : 0;
    if (lane < count) n.log_sums[begin + lane] = static_cast<float>(log_sum);
    squares += log_sum * log_sum;
    if (softmax()) entropies += log_sum;  // less the sum of p x logit
  }

  // Whether the replayed expert of each choice, a lane's `own`, exists.
  __device__ __forceinline__ bool replayed(std::int64_t t, int own) const {
    const bool good = lane >= n.k || (own >= 0 && own < n.experts);
    if (!good) report(faults, Fault::replayed_expert, own, n.experts, t);
    return __all_sync(all_lanes, good);
  }

  __device__ __forceinline__ void choose(std::int64_t t) {
    const bool given = n.replay || n.rule.forced_balance;
    int own = 0;  // choice `lane`
    if (n.replay && lane < n.k) own = n.indices[t * n.k + lane];
    if (n.replay && !replayed(t, own)) return;
    if (n.rule.forced_balance && !n.replay) own = static_cast<int>((t * n.k + lane) % n.experts);
    unsigned order[Held], open = 0;
    bool nan = false;
#pragma unroll
    for (int u = 0; u < Held; ++u) {
      order[u] = 0;
      if (given || !exists(u)) continue;
      order[u] = order_of(n.bias ? scores[u] + n.bias[lane + u * 32] : scores[u]);
      open |= 1u << u;
      nan = nan || order[u] == 0;
    }
    nan = __any_sync(all_lanes, nan);
    float total = 0, own_score = 0;
    for (int j = 0; j < n.k; ++j) {
      const int best = given ? __shfl_sync(all_lanes, own, j) : best_held(order, open, nan);
      const float score = held_by(scores, best);
      total += score;
      if (lane == j) {
        own = best;
        own_score = score;
      }
#pragma unroll
      for (int u = 0; u < Held; ++u) {
        const bool own_best = best == lane + u * 32;
        open &= own_best ? ~(1u << u) : ~0u;
        chosen[u] += own_best ? 1 : 0;
      }
    }
    const float divisor = n.rule.normalise ? total + router_epsilon : 1.0f;
    const float weight = own_score / divisor * static_cast<float>(n.rule.scaling_factor);
    if (lane < n.k) n.weights[t * n.k + lane] = weight;
    if (lane < n.k && !n.replay) n.indices[t * n.k + lane] = own;
  }
};

// A warp per token, tokens_per_warp tokens one after the other. Shared: sums f64 [warps, E + 2], counts [E].
template <int Held>
__global__ void __launch_bounds__(held_threads)
    decide_held_kernel(const __grid_constant__ Decision n, const __grid_constant__ FaultSink faults) {
  extern __shared__ double held_sums[];
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const auto width = static_cast<std::size_t>(n.experts + 2);
  double* sums = held_sums + threadIdx.x / 32 * width;
  auto* counts = reinterpret_cast<int*>(held_sums + warps * width);
  for (int e = threadIdx.x; e < n.experts; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  HeldTokens<Held> tokens(n, faults);
  HeldLogits<Held> logits, next;
  const std::int64_t first = n.first(), last = n.last();  // the same for all lanes, as the compiler sees too
  if (first < last) next.load(n, first);
  for (std::int64_t begin = first; begin < last; begin += 32) {
    const auto count = static_cast<int>(min(std::int64_t{32}, last - begin));
    for (int i = 0; i < count; ++i) {
      const std::int64_t t = begin + i;
      logits = next;
      if (t + 1 < last) next.load(n, t + 1);
      tokens.score(t, i, logits);
      tokens.choose(t);
    }
    tokens.sum_up(begin, count);
  }
#pragma unroll
  for (int u = 0; u < Held; ++u) {
    if (!tokens.exists(u)) continue;
    sums[lane + u * 32] = tokens.q[u];
    if (tokens.chosen[u] != 0) atomicAdd(&counts[lane + u * 32], tokens.chosen[u]);
  }
  const double squares = warp_sum(tokens.squares), entropies = warp_sum(tokens.entropies);
  if (lane == 0) {
    sums[n.experts] = squares;
    sums[n.experts + 1] = entropies;
  }
  __syncthreads();
  n.leave(counts, held_sums, width);
}

// What follows from the weights w_j = factor s_j / (sum + epsilon) of one token: its scores' gradients.
template <int Held>
__device__ void weights_backward(const Gradient& n, std::int64_t t, const float (&scores)[Held],
                                 float (&gradients)[Held]) {
  const int lane = threadIdx.x % 32;
  const int own = lane < n.k ? n.indices[t * n.k + lane] : 0;
  const float dweight = lane < n.k ? n.dweights[t * n.k + lane] : 0;
  float sum = 1, weighted = 0;
  if (n.rule.normalise) {
    float own_score = 0;
    sum = 0;
    for (int j = 0; j < n.k; ++j) {
      const float score = held_by(scores, __shfl_sync(all_lanes, own, j));
      if (lane == j) own_score = score;
      sum += score;
    }
    sum += router_epsilon;
    const float part = dweight * (own_score / sum);
    for (int j = 0; j < n.k; ++j) weighted += __shfl_sync(all_lanes, part, j);
  }
  const float own_gradient = static_cast<float>(n.rule.scaling_factor) * ((dweight - weighted) / sum);
  for (int j = 0; j < n.k; ++j) {
    const int e = __shfl_sync(all_lanes, own, j);
    const float gradient = __shfl_sync(all_lanes, own_gradient, j);
#pragma unroll
    for (int u = 0; u < Held; ++u) {
      if (e == lane + u * 32) gradients[u] += gradient;
    }
  }
}

// From the gradients of scores to those of logits.
template <int Held>
__device__ void softmax_backward(const Gradient& n, float z, const float (&p)[Held], float (&d)[Held]) {
  double projected = 0;
#pragma unroll
  for (int u = 0; u < Held; ++u) projected += static_cast<double>(p[u]) * static_cast<double>(d[u]);
  const float shift = z - static_cast<float>(warp_sum(projected));
#pragma unroll
  for (int u = 0; u < Held; ++u) d[u] = p[u] * (d[u] + shift);
}
template <int Held>
__device__ void sigmoid_backward(const Gradient& n, float z, float log_sum, const float (&factors)[Held],
                                 const float (&logits)[Held], const float (&s)[Held], float (&d)[Held]) {
  double total = 0, mean = 0;
  if (n.factors) {
#pragma unroll
    for (int u = 0; u < Held; ++u) {
      total += static_cast<double>(s[u]);
      mean += static_cast<double>(factors[u]) * static_cast<double>(s[u]);
    }
    total = warp_sum(total) + static_cast<double>(router_epsilon);
    mean = static_cast<double>(static_cast<float>(warp_sum(mean) / total));
  }
#pragma unroll
  for (int u = 0; u < Held; ++u) {
    if (n.factors) d[u] += static_cast<float>((static_cast<double>(factors[u]) - mean) / total);
    d[u] *= s[u] * (1 - s[u]);
    if (z != 0) d[u] += z * expf(logits[u] - log_sum);
  }
}

// A warp per token.
template <int Held>
__global__ void __launch_bounds__(held_threads) dlogits_held_kernel(Gradient n) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * (held_threads / 32) + threadIdx.x / 32;
  if (t >= n.tokens) return;
  const int lane = threadIdx.x % 32;
  const bool softmax = n.rule.score == RouterRule::Score::softmax;
  const float log_sum = n.log_sums[t], z = n.factors ? 2 * n.factors[n.experts] * log_sum : 0.0f;
  float row[Held], factors[Held] = {}, scores[Held], d[Held] = {};
#pragma unroll
  for (int u = 0; u < Held; ++u) {
    const int e = lane + u * 32;
    row[u] = e < n.experts ? n.rows[t * n.experts + e] : 0;
    if (n.factors && e < n.experts) factors[u] = n.factors[e];
    scores[u] = softmax ? row[u] : e < n.experts ? 1.0f / (1.0f + expf(-row[u])) : 0;
  }
  weights_backward(n, t, scores, d);
  if (softmax) {
#pragma unroll
    for (int u = 0; u < Held; ++u) d[u] += factors[u];
    softmax_backward(n, z, scores, d);
  } else {
    sigmoid_backward(n, z, log_sum, factors, row, scores, d);
  }
#pragma unroll
  for (int u = 0; u < Held; ++u) {
    const int e = lane + u * 32;
    if (!n.split) {
      if (e < n.experts) n.dlogits[t * n.experts + e] = d[u];
    } else if (e < n.stride) {
      Split(e < n.experts ? d[u] : 0.0f).store(n.split + t * (router_parts + 1) * n.stride + e, n.stride);
    }
  }
}

}  // namespace ananke::cuda
