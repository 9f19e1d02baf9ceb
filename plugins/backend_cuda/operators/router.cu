#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/expert_sort.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "plugins/backend_cuda/operators/router.h"
#include "plugins/backend_cuda/operators/router_choice.cuh"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

using Sizes = Router::Sizes;

constexpr int tokens_per_warp = 8, most_warps = 4;
constexpr int backward_warps = 8;
constexpr float epsilon = 1e-20f;
constexpr std::int64_t widened_elements = 1 << 23;  // of x, at a time

// Shared memory of one warp: sums f64 [E + 2], scores and values f32 [E], group values f32 [groups], two sets of flags.
__host__ __device__ std::size_t warp_bytes(std::int64_t experts, std::int64_t groups) {
  const auto e = static_cast<std::size_t>(experts), g = static_cast<std::size_t>(groups);
  return ((e + 2) * sizeof(double) + (2 * e + g) * sizeof(float) + e + g + 15) / 16 * 16;
}

// Of a block, by the sizes alone, so that sums are the same on every device.
int warps_of(const Sizes& n) {
  const auto fitting = static_cast<int>((40 << 10) / warp_bytes(n.experts, n.experts));
  return std::clamp(fitting, 1, most_warps);
}

std::int64_t forward_blocks(const Sizes& n) { return blocks_for(n.tokens, warps_of(n) * tokens_per_warp); }

std::int64_t widened_tokens(const Sizes& n) {
  return std::min(n.tokens, std::max<std::int64_t>(1, widened_elements / std::max<std::int64_t>(1, n.hidden)));
}

struct Saved {
  float* rows;      // [T, E]: scores (softmax) or logits (sigmoid)
  float* log_sums;  // [T]
  Saved(Carve& carve, const Sizes& n)
      : rows(carve.take<float>(n.tokens * n.experts)), log_sums(carve.take<float>(n.tokens)) {}
};

struct ForwardScratch {
  double* sums;    // [blocks, E + 2]: statistics without the counts
  float* widened;  // [widened tokens, H]
  ForwardScratch(Carve& carve, const Sizes& n)
      : sums(carve.take<double>(forward_blocks(n) * (n.experts + 2))),
        widened(carve.take<float>(widened_tokens(n) * n.hidden)) {}
};

struct BackwardScratch {
  float* dlogits;  // [T, E]
  float* widened;
  BackwardScratch(Carve& carve, const Sizes& n)
      : dlogits(carve.take<float>(n.tokens * n.experts)), widened(carve.take<float>(widened_tokens(n) * n.hidden)) {}
};

struct Decision {
  std::int64_t tokens;
  int experts, k;
  RouterRule rule;
  bool replay;
  const float* bias;
  float *rows, *log_sums;
  std::int32_t* indices;
  float* weights;
  std::int32_t* counts;
  double* sums;  // null: no statistics are wanted
};

// Scores of a token from its logits, and its part of the statistics. By one warp.
__device__ void score(const Decision& n, std::int64_t t, float* scores, double* sums) {
  const int lane = threadIdx.x % 32;
  float* row = n.rows + t * n.experts;
  float shift = -INFINITY;
  for (int e = lane; e < n.experts; e += 32) shift = fmaxf(shift, row[e]);
  shift = warp_max(shift);
  double sum = 0;
  for (int e = lane; e < n.experts; e += 32) sum += static_cast<double>(expf(row[e] - shift));
  sum = warp_sum(sum);
  const double log_sum = static_cast<double>(shift) + log(sum);
  if (lane == 0) n.log_sums[t] = static_cast<float>(log_sum);
  double entropy = 0, total = 1;
  if (n.rule.score == RouterRule::Score::softmax) {
    const auto inverse = static_cast<float>(1 / sum);
    double mean = 0;
    for (int e = lane; e < n.experts; e += 32) {
      const float logit = row[e], p = expf(logit - shift) * inverse;
      mean += static_cast<double>(p) * static_cast<double>(logit);
      row[e] = scores[e] = p;
    }
    entropy = log_sum - warp_sum(mean);
  } else {
    total = 0;
    for (int e = lane; e < n.experts; e += 32) {
      scores[e] = 1.0f / (1.0f + expf(-row[e]));
      total += static_cast<double>(scores[e]);
    }
    total = warp_sum(total) + static_cast<double>(epsilon);
    for (int e = lane; e < n.experts; e += 32) {
      const double q = static_cast<double>(scores[e]) / total;
      if (q > 0) entropy -= q * log(q);
    }
    entropy = warp_sum(entropy);
  }
  if (n.sums) {
    for (int e = lane; e < n.experts; e += 32) sums[e] += static_cast<double>(scores[e]) / total;
    if (lane == 0) {
      sums[n.experts] += log_sum * log_sum;
      sums[n.experts + 1] += entropy;
    }
  }
  __syncwarp();
}

// Whether every replayed expert exists.
__device__ bool replayed(const Decision& n, std::int64_t t, const std::int32_t* indices, const FaultSink& faults) {
  bool good = true;
  for (int j = threadIdx.x % 32; j < n.k; j += 32) {
    if (indices[j] >= 0 && indices[j] < n.experts) continue;
    report(faults, Fault::replayed_expert, indices[j], n.experts, t);
    good = false;
  }
  return __all_sync(all_lanes, good);
}

__device__ void decide(const Decision& n, std::int64_t t, const float* scores, const ChoiceScratch& scratch,
                       std::int32_t* indices) {
  const int lane = threadIdx.x % 32;
  if (n.rule.forced_balance) {
    for (int j = lane; j < n.k; j += 32) indices[j] = static_cast<std::int32_t>((t * n.k + j) % n.experts);
    __syncwarp();
    return;
  }
  for (int e = lane; e < n.experts; e += 32) scratch.values[e] = n.bias ? scores[e] + n.bias[e] : scores[e];
  __syncwarp();
  choose_experts(n.experts, n.k, n.rule, scratch, indices);
}

__device__ void weigh(const Decision& n, const float* scores, const std::int32_t* indices, float* weights) {
  float sum = 0;
  for (int j = 0; j < n.k; ++j) sum += scores[indices[j]];
  const float divisor = n.rule.normalise ? sum + epsilon : 1.0f;
  const auto factor = static_cast<float>(n.rule.scaling_factor);
  for (int j = threadIdx.x % 32; j < n.k; j += 32) {
    weights[j] = scores[indices[j]] / divisor * factor;
    atomicAdd(&n.counts[indices[j]], 1);
  }
}

// A warp per token, tokens_per_warp tokens one after the other; the block's sums are those of its warps in order.
__global__ void decide_kernel(Decision n, FaultSink faults) {
  extern __shared__ double shared_memory[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int groups = static_cast<int>(n.rule.groups);
  const std::size_t stride = warp_bytes(n.experts, groups) / sizeof(double);
  double* sums = shared_memory + warp * stride;
  float* scores = reinterpret_cast<float*>(sums + n.experts + 2);
  float* values = scores + n.experts;
  float* group_values = values + n.experts;
  auto* closed = reinterpret_cast<unsigned char*>(group_values + groups);
  const ChoiceScratch scratch{values, group_values, closed, closed + n.experts};
  for (int i = lane; i < n.experts + 2; i += 32) sums[i] = 0;
  __syncwarp();
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * warps + warp) * tokens_per_warp;
  for (std::int64_t t = first; t < min(first + tokens_per_warp, n.tokens); ++t) {
    std::int32_t* indices = n.indices + t * n.k;
    score(n, t, scores, sums);
    if (n.replay) {
      if (!replayed(n, t, indices, faults)) continue;
    } else {
      decide(n, t, scores, scratch, indices);
    }
    weigh(n, scores, indices, n.weights + t * n.k);
    __syncwarp();
  }
  __syncthreads();
  for (int i = threadIdx.x; n.sums && i < n.experts + 2; i += blockDim.x) {
    double total = 0;
    for (int w = 0; w < warps; ++w) total += shared_memory[w * stride + i];
    n.sums[static_cast<std::int64_t>(blockIdx.x) * (n.experts + 2) + i] = total;
  }
}

// A thread per number of the statistics: the sums of all blocks, in their order.
__global__ void statistics_kernel(std::int64_t blocks, int experts, const double* sums, const std::int32_t* counts,
                                  double* statistics) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < experts) statistics[i] = counts[i];
  if (i >= experts + 2) return;
  double total = 0;
  for (std::int64_t block = 0; block < blocks; ++block) total += sums[block * (experts + 2) + i];
  statistics[experts + i] = total;
}

struct Gradient {
  std::int64_t tokens;
  int experts, k;
  RouterRule rule;
  const float *rows, *log_sums;
  const std::int32_t* indices;
  const float *dweights, *factors;
  float* dlogits;
};

// What follows from the weights w_j = factor s_j / (sum + epsilon) of one token.
struct WeightsBackward {
  const Gradient& n;
  const float *row, *dweights;
  const std::int32_t* indices;
  float sum, weighted;

  __device__ WeightsBackward(const Gradient& n_, std::int64_t t)
      : n(n_),
        row(n_.rows + t * n_.experts),
        dweights(n_.dweights + t * n_.k),
        indices(n_.indices + t * n_.k),
        sum(1),
        weighted(0) {
    if (!n.rule.normalise) return;
    sum = 0;
    for (int j = 0; j < n.k; ++j) sum += score(indices[j]);
    sum += epsilon;
    for (int j = 0; j < n.k; ++j) weighted += dweights[j] * (score(indices[j]) / sum);
  }
  __device__ float score(int e) const {
    return n.rule.score == RouterRule::Score::softmax ? row[e] : 1.0f / (1.0f + expf(-row[e]));
  }
  __device__ float gradient(int e) const {  // of score e
    const auto factor = static_cast<float>(n.rule.scaling_factor);
    float d = 0;
    for (int j = 0; j < n.k; ++j) {
      if (indices[j] == e) d += factor * ((dweights[j] - weighted) / sum);
    }
    return d;
  }
};

// A warp per token.
__global__ void dlogits_kernel(Gradient n) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * backward_warps + threadIdx.x / 32;
  if (t >= n.tokens) return;
  const int lane = threadIdx.x % 32;
  const WeightsBackward weights(n, t);
  const float log_sum = n.log_sums[t], z = n.factors ? 2 * n.factors[n.experts] * log_sum : 0.0f;
  float* out = n.dlogits + t * n.experts;
  if (n.rule.score == RouterRule::Score::softmax) {
    double projected = 0;
    for (int e = lane; e < n.experts; e += 32) {
      const float d = weights.gradient(e) + (n.factors ? n.factors[e] : 0.0f);
      out[e] = d;
      projected += static_cast<double>(weights.row[e]) * static_cast<double>(d);
    }
    const float shift = z - static_cast<float>(warp_sum(projected));
    for (int e = lane; e < n.experts; e += 32) out[e] = weights.row[e] * (out[e] + shift);
    return;
  }
  double total = 0, mean = 0;
  for (int e = lane; n.factors && e < n.experts; e += 32) {
    const double s = weights.score(e);
    total += s;
    mean += static_cast<double>(n.factors[e]) * s;
  }
  total = warp_sum(total) + static_cast<double>(epsilon);
  mean = static_cast<double>(static_cast<float>(warp_sum(mean) / total));
  for (int e = lane; e < n.experts; e += 32) {
    const float s = weights.score(e);
    float d = weights.gradient(e);
    if (n.factors) d += static_cast<float>((static_cast<double>(n.factors[e]) - mean) / total);
    d *= s * (1 - s);
    if (z != 0) d += z * expf(weights.row[e] - log_sum);
    out[e] = d;
  }
}

constexpr int threads = 256;

__global__ void widen_kernel(std::int64_t n, const bf16* x, float* y) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < n) y[i] = to_float(x[i]);
}

__global__ void add_narrowed_kernel(std::int64_t n, const float* x, bf16* y) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < n) y[i] = from_float<bf16>(to_float(y[i]) + x[i]);
}

const float* widen(cudaStream_t on, std::int64_t n, const bf16* x, float* y) {
  if (n == 0) return y;
  widen_kernel<<<static_cast<unsigned>(blocks_for(n, threads)), threads, 0, on>>>(n, x, y);
  ANANKE_CUDA_LAUNCHED("router: widen");
  return y;
}

// body(first token, tokens, x of them as f32)
template <class Body>
void for_pieces(cudaStream_t on, const Sizes& n, const TensorView& x, float* widened, const Body& body) {
  if (x.dtype == DType::f32) return body(0, n.tokens, data<const float>(x));
  const std::int64_t most = widened_tokens(n);
  for (std::int64_t t = 0; t < n.tokens; t += most) {
    const std::int64_t count = std::min(most, n.tokens - t);
    body(t, count, widen(on, count * n.hidden, data<const bf16>(x) + t * n.hidden, widened));
  }
}

}  // namespace

std::size_t CudaRouter::saved(const Sizes& s) const {
  Carve carve;
  const Saved counted(carve, s);
  return carve.used();
}

std::size_t CudaRouter::workspace(const Sizes& s) const {
  Carve forward, backward;
  const ForwardScratch counted_forward(forward, s);
  const BackwardScratch counted_backward(backward, s);
  return std::max(forward.used(), backward.used());
}

void CudaRouter::forward(Stream& stream, const Forward& a) {
  constexpr const char* op = "router forward";
  const Sizes n = arguments::check(a, elements_of(a.x));
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  const int warps = warps_of(n);
  const std::size_t shared = static_cast<std::size_t>(warps) * warp_bytes(n.experts, a.rule.groups);
  ANANKE_CHECK(shared <= facts_.shared_per_block_most, "{}: {} experts need {} bytes of shared memory of {}", op,
               n.experts, shared, facts_.shared_per_block_most);
  const cudaStream_t on = raw(stream);
  Carve saved_carve(a.saved), scratch_carve(a.workspace);
  const Saved saved(saved_carve, n);
  const ForwardScratch scratch(scratch_carve, n);
  auto* counts = data<std::int32_t>(a.counts);
  check(cudaMemsetAsync(counts, 0, a.counts.bytes(), on), "clear the router's counts");
  for_pieces(on, n, a.x, scratch.widened, [&](std::int64_t t, std::int64_t count, const float* x) {
    products_.run(on, {.m = count,
                       .n = n.experts,
                       .k = n.hidden,
                       .a = {x, n.hidden},
                       .b = {a.gate.data, n.hidden, true},
                       .in = DType::f32,
                       .out = saved.rows + t * n.experts,
                       .out_stride = n.experts,
                       .out_type = DType::f32});
  });
  if (n.tokens > 0) {
    const Decision decision{n.tokens,
                            static_cast<int>(n.experts),
                            static_cast<int>(n.k),
                            a.rule,
                            a.replay,
                            data<const float>(a.bias),
                            saved.rows,
                            saved.log_sums,
                            data<std::int32_t>(a.indices),
                            data<float>(a.weights),
                            counts,
                            a.statistics ? scratch.sums : nullptr};
    allow_shared(decide_kernel, shared);
    decide_kernel<<<static_cast<unsigned>(forward_blocks(n)), static_cast<unsigned>(warps * 32), shared, on>>>(
        decision, faults_.sink());
    ANANKE_CUDA_LAUNCHED(op);
  }
  if (!a.statistics) return;
  statistics_kernel<<<static_cast<unsigned>(blocks_for(n.experts + 2, 64)), 64, 0, on>>>(
      forward_blocks(n), static_cast<int>(n.experts), scratch.sums, counts, data<double>(a.statistics));
  ANANKE_CUDA_LAUNCHED("router statistics");
}

void CudaRouter::backward(Stream& stream, const Backward& a) {
  constexpr const char* op = "router backward";
  const Sizes n = arguments::check(a, elements_of(a.x));
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  if (n.tokens == 0) return;
  const cudaStream_t on = raw(stream);
  Carve saved_carve(a.saved), scratch_carve(a.workspace);
  const Saved saved(saved_carve, n);
  const BackwardScratch scratch(scratch_carve, n);
  const Gradient gradient{n.tokens,
                          static_cast<int>(n.experts),
                          static_cast<int>(n.k),
                          a.rule,
                          saved.rows,
                          saved.log_sums,
                          data<const std::int32_t>(a.indices),
                          data<const float>(a.dweights),
                          data<const float>(a.factors),
                          scratch.dlogits};
  dlogits_kernel<<<static_cast<unsigned>(blocks_for(n.tokens, backward_warps)), backward_warps * 32, 0, on>>>(gradient);
  ANANKE_CUDA_LAUNCHED(op);
  for_pieces(on, n, a.x, scratch.widened, [&](std::int64_t t, std::int64_t count, const float* x) {
    products_.run(on, {.m = n.experts,
                       .n = n.hidden,
                       .k = count,
                       .a = {scratch.dlogits + t * n.experts, n.experts, true},
                       .b = {x, n.hidden},
                       .in = DType::f32,
                       .out = a.dgate.data,
                       .out_stride = n.hidden,
                       .out_type = DType::f32,
                       .beta = 1});
    const bool narrow = a.dx.dtype == DType::bf16;  // then the piece of x is not needed any more
    products_.run(on, {.m = count,
                       .n = n.hidden,
                       .k = n.experts,
                       .a = {scratch.dlogits + t * n.experts, n.experts},
                       .b = {a.gate.data, n.hidden},
                       .in = DType::f32,
                       .out = narrow ? scratch.widened : data<float>(a.dx),
                       .out_stride = n.hidden,
                       .out_type = DType::f32,
                       .beta = narrow ? 0.0f : 1.0f});
    if (!narrow || n.hidden == 0) return;
    const std::int64_t size = count * n.hidden;
    add_narrowed_kernel<<<static_cast<unsigned>(blocks_for(size, threads)), threads, 0, on>>>(
        size, scratch.widened, data<bf16>(a.dx) + t * n.hidden);
    ANANKE_CUDA_LAUNCHED("router: narrow");
  });
}

}  // namespace ananke::cuda
