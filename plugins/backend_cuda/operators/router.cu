#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "plugins/backend_cuda/operators/router.h"
#include "plugins/backend_cuda/operators/router_choice.cuh"
#include "plugins/backend_cuda/operators/router_held.cuh"
#include "plugins/backend_cuda/operators/router_parts.cuh"
#include "plugins/backend_cuda/operators/shared_memory.cuh"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

using Sizes = Router::Sizes;

constexpr int fewest_tokens_per_warp = 4, most_warps = held_threads / 32;
constexpr std::int64_t whole_grid = 512;  // blocks of most_warps that are resident at once
constexpr int backward_warps = held_threads / 32;
constexpr float epsilon = router_epsilon;
constexpr std::int64_t parts = router_parts;
constexpr int statistics_columns = 16, statistics_groups = 64;  // of a block that adds up what others left

// Shared memory of one warp: sums f64 [E + 2], scores and values f32 [E], group values f32 [groups], two sets of flags.
__host__ __device__ std::size_t warp_bytes(std::int64_t experts, std::int64_t groups) {
  const auto e = static_cast<std::size_t>(experts), g = static_cast<std::size_t>(groups);
  return ((e + 2) * sizeof(double) + (2 * e + g) * sizeof(float) + e + g + 15) / 16 * 16;
}

// Of a block, and tokens of a warp, by the sizes alone, so that sums are the same on every device.
int warps_of(const Sizes& n) {
  const auto fitting = static_cast<int>((40 << 10) / warp_bytes(n.experts, n.experts));
  return std::clamp(fitting, 1, most_warps);
}

std::int64_t tokens_per_warp(const Sizes& n) {
  return std::max<std::int64_t>(fewest_tokens_per_warp, blocks_for(n.tokens, whole_grid * most_warps));
}

std::int64_t forward_blocks(const Sizes& n) { return blocks_for(n.tokens, warps_of(n) * tokens_per_warp(n)); }

std::int64_t padded(const Sizes& n) { return (n.experts + 7) / 8 * 8; }

struct Saved {
  float* rows;      // [T, E]: scores (softmax) or logits (sigmoid)
  float* log_sums;  // [T]
  Saved(Carve& carve, const Sizes& n)
      : rows(carve.take<float>(n.tokens * n.experts)), log_sums(carve.take<float>(n.tokens)) {}
};

struct ForwardScratch {
  double* sums;          // [blocks, E + 2]: statistics without the counts
  std::int32_t* counts;  // [blocks, E]
  float* logits;         // [T, parts, padded E]
  bf16* gate;            // [parts, padded E, H]
  ForwardScratch(Carve& carve, const Sizes& n)
      : sums(carve.take<double>(forward_blocks(n) * (n.experts + 2))),
        counts(carve.take<std::int32_t>(forward_blocks(n) * n.experts)),
        logits(carve.take<float>(n.tokens * parts * padded(n))),
        gate(carve.take<bf16>(parts * padded(n) * n.hidden)) {}
};

struct BackwardScratch {
  float* dlogits;  // [T, E]
  bf16* split;     // [T, parts + 1, padded E]: low, high and middle part of dlogits, and the high one again
  bf16* gate;      // [parts, padded E, H]: what the last three are multiplied by, high part twice, then the middle one
  float* dgate;    // [parts, padded E, H]
  BackwardScratch(Carve& carve, const Sizes& n)
      : dlogits(carve.take<float>(n.tokens * n.experts)),
        split(carve.take<bf16>(n.tokens * (parts + 1) * padded(n))),
        gate(carve.take<bf16>(parts * padded(n) * n.hidden)),
        dgate(carve.take<float>(parts * padded(n) * n.hidden)) {}
};

// Scores of a token from its logits, and its part of the statistics. By one warp; `logits`: shared, of its own.
__device__ void score(const Decision& n, std::int64_t t, float* logits, float* scores, double* sums) {
  const int lane = threadIdx.x % 32;
  float* row = n.rows + t * n.experts;
  const float* from = n.logits + t * parts * n.stride;
  float shift = -INFINITY;
  for (int e = lane; e < n.experts; e += 32) {
    logits[e] = n.logits ? from[2 * n.stride + e] + from[n.stride + e] + from[e] : row[e];
    shift = fmaxf(shift, logits[e]);
  }
  shift = warp_max(shift);
  double sum = 0;
  for (int e = lane; e < n.experts; e += 32) sum += static_cast<double>(expf(logits[e] - shift));
  sum = warp_sum(sum);
  const double log_sum = static_cast<double>(shift) + log(sum);
  if (lane == 0) n.log_sums[t] = static_cast<float>(log_sum);
  double entropy = 0, total = 1;
  if (n.rule.score == RouterRule::Score::softmax) {
    const auto inverse = static_cast<float>(1 / sum);
    double mean = 0;
    for (int e = lane; e < n.experts; e += 32) {
      const float logit = logits[e], p = expf(logit - shift) * inverse;
      mean += static_cast<double>(p) * static_cast<double>(logit);
      row[e] = scores[e] = p;
    }
    entropy = log_sum - warp_sum(mean);
  } else {
    total = 0;
    for (int e = lane; e < n.experts; e += 32) {
      if (n.logits) row[e] = logits[e];
      scores[e] = 1.0f / (1.0f + expf(-logits[e]));
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

__device__ void weigh(const Decision& n, const float* scores, const std::int32_t* indices, float* weights,
                      int* counts) {
  float sum = 0;
  for (int j = 0; j < n.k; ++j) sum += scores[indices[j]];
  const float divisor = n.rule.normalise ? sum + epsilon : 1.0f;
  const auto factor = static_cast<float>(n.rule.scaling_factor);
  for (int j = threadIdx.x % 32; j < n.k; j += 32) {
    weights[j] = scores[indices[j]] / divisor * factor;
    atomicAdd(&counts[indices[j]], 1);
  }
}

// A warp per token, tokens_per_warp tokens one after the other; the block's sums are those of its warps in order.
__global__ void decide_kernel(Decision n, FaultSink faults) {
  extern __shared__ double shared_memory[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int groups = static_cast<int>(n.rule.groups);
  const std::size_t stride = warp_bytes(n.experts, groups) / sizeof(double);
  double* sums = shared_memory + warp * stride;
  auto* counts = reinterpret_cast<int*>(shared_memory + warps * stride);  // of the block
  float* scores = reinterpret_cast<float*>(sums + n.experts + 2);
  float* values = scores + n.experts;
  float* group_values = values + n.experts;
  auto* closed = reinterpret_cast<unsigned char*>(group_values + groups);
  const ChoiceScratch scratch{values, group_values, closed, closed + n.experts};
  for (int i = lane; i < n.experts + 2; i += 32) sums[i] = 0;
  for (int e = threadIdx.x; e < n.experts; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  for (std::int64_t t = n.first(); t < n.last(); ++t) {
    std::int32_t* indices = n.indices + t * n.k;
    score(n, t, values, scores, sums);
    if (n.replay) {
      if (!replayed(n, t, indices, faults)) continue;
    } else {
      decide(n, t, scores, scratch, indices);
    }
    weigh(n, scores, indices, n.weights + t * n.k, counts);
    __syncwarp();
  }
  __syncthreads();
  n.leave(counts, shared_memory, stride);
}

// Sums of all blocks' in an order that never changes: thread (x, y) adds rows y, y + statistics_groups, ... of a
// column. The first `experts` columns are counts, which f64 holds exactly.
__global__ void __launch_bounds__(statistics_columns* statistics_groups)
    statistics_kernel(std::int64_t blocks, int experts, const double* sums, const std::int32_t* block_counts,
                      std::int32_t* counts, double* statistics) {
  __shared__ double parts_of[statistics_groups][statistics_columns];
  const int i = static_cast<int>(blockIdx.x) * statistics_columns + static_cast<int>(threadIdx.x);
  double total = 0;
  if (i < experts) {
#pragma unroll 8
    for (std::int64_t block = threadIdx.y; block < blocks; block += statistics_groups) {
      total += static_cast<double>(block_counts[block * experts + i]);
    }
  } else if (i < 2 * experts + 2 && statistics) {
#pragma unroll 8
    for (std::int64_t block = threadIdx.y; block < blocks; block += statistics_groups) {
      total += sums[block * (experts + 2) + i - experts];
    }
  }
  parts_of[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || i >= 2 * experts + 2) return;
#pragma unroll 8
  for (int y = 1; y < statistics_groups; ++y) total += parts_of[y][threadIdx.x];
  if (i < experts) counts[i] = static_cast<std::int32_t>(total);
  if (statistics) statistics[i] = total;
}

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

// The gate's parts, [parts, stride, H]; experts behind the last are 0. blockIdx.y: the expert.
__global__ void split_gate_kernel(int experts, int stride, std::int64_t hidden, bool forward, const float* gate,
                                  bf16* out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= hidden) return;
  const std::int64_t expert = blockIdx.y, part = stride * hidden;
  const Split split(expert < experts ? gate[expert * hidden + i] : 0.0f);
  bf16* at = out + expert * hidden + i;
  at[0] = split.high;
  at[part] = forward ? split.middle : split.high;
  at[2 * part] = forward ? split.low : split.middle;
}

// [T, parts + 1, stride] from [T, E]. A thread per number of a part.
__global__ void split_dlogits_kernel(std::int64_t tokens, int experts, int stride, const float* dlogits, bf16* out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x, t = i / stride;
  const int e = static_cast<int>(i % stride);
  if (t >= tokens) return;
  Split(e < experts ? dlogits[t * experts + e] : 0.0f).store(out + t * (parts + 1) * stride + e, stride);
}

// dgate [E, H] += its parts [parts, stride, H]: low, high, middle.
__global__ void add_parts_kernel(std::int64_t size, std::int64_t part, const float* from, float* dgate) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < size) dgate[i] += from[i] + from[2 * part + i] + from[part + i];
}

void launch_decision(const DeviceFacts& facts, cudaStream_t on, const Sizes& n, const Decision& decision,
                     const FaultSink& faults) {
  constexpr const char* op = "router forward";
  const int warps = warps_of(n);
  const auto blocks = static_cast<unsigned>(forward_blocks(n)), in_block = static_cast<unsigned>(warps * 32);
  const std::size_t counts = static_cast<std::size_t>(n.experts) * sizeof(int);
  with_held(n.experts, n.k, decision.rule, [&](auto held) {
    if constexpr (held() > 0) {
      const std::size_t sums = static_cast<std::size_t>(warps * (n.experts + 2)) * sizeof(double);
      decide_held_kernel<held()><<<blocks, in_block, sums + counts, on>>>(decision, faults);
    } else {
      const std::size_t shared = static_cast<std::size_t>(warps) * warp_bytes(n.experts, decision.rule.groups) + counts;
      ANANKE_CHECK(shared <= facts.shared_per_block_most, "{}: {} experts need {} bytes of shared memory of {}", op,
                   n.experts, shared, facts.shared_per_block_most);
      allow_shared(decide_kernel, shared);
      decide_kernel<<<blocks, in_block, shared, on>>>(decision, faults);
    }
    ANANKE_CUDA_LAUNCHED(op);
  });
}

void launch_gradient(cudaStream_t on, const Gradient& n) {
  constexpr const char* op = "router backward";
  const auto blocks = static_cast<unsigned>(blocks_for(n.tokens, backward_warps));
  with_held(n.experts, n.k, {}, [&](auto held) {
    if constexpr (held() > 0) {
      dlogits_held_kernel<held()><<<blocks, held_threads, 0, on>>>(n);
      ANANKE_CUDA_LAUNCHED(op);
      return;
    }
    dlogits_kernel<<<blocks, backward_warps * 32, 0, on>>>(n);
    ANANKE_CUDA_LAUNCHED(op);
    if (!n.split) return;
    split_dlogits_kernel<<<static_cast<unsigned>(blocks_for(n.tokens * n.stride, threads)), threads, 0, on>>>(
        n.tokens, n.experts, n.stride, n.dlogits, n.split);
    ANANKE_CUDA_LAUNCHED("router: parts of the logits' gradient");
  });
}

void split_gate(cudaStream_t on, const Sizes& n, bool forward, const TensorView& gate, bf16* out) {
  if (n.hidden == 0) return;
  const dim3 grid(static_cast<unsigned>(blocks_for(n.hidden, threads)), static_cast<unsigned>(padded(n)));
  split_gate_kernel<<<grid, threads, 0, on>>>(static_cast<int>(n.experts), static_cast<int>(padded(n)), n.hidden,
                                              forward, data<const float>(gate), out);
  ANANKE_CUDA_LAUNCHED("router: parts of the gate");
}

// In saved.rows where x is f32, else in scratch.logits.
void make_logits(Products& products, cudaStream_t on, const Sizes& n, const Router::Forward& a, const Saved& saved,
                 const ForwardScratch& scratch) {
  if (a.x.dtype == DType::f32) {
    return products.run(on, {.m = n.tokens,
                             .n = n.experts,
                             .k = n.hidden,
                             .a = {a.x.data, n.hidden},
                             .b = {a.gate.data, n.hidden, true},
                             .in = DType::f32,
                             .out = saved.rows,
                             .out_stride = n.experts,
                             .out_type = DType::f32});
  }
  split_gate(on, n, true, a.gate, scratch.gate);
  products.run(on, {.m = n.tokens,
                    .n = parts * padded(n),
                    .k = n.hidden,
                    .a = {a.x.data, n.hidden},
                    .b = {scratch.gate, n.hidden, true},
                    .in = DType::bf16,
                    .out = scratch.logits,
                    .out_stride = parts * padded(n),
                    .out_type = DType::f32});
}

// dgate += dlogits^T x and dx += dlogits gate, all f32.
void add_gradients(Products& products, cudaStream_t on, const Sizes& n, const Router::Backward& a,
                   const BackwardScratch& scratch) {
  products.run(on, {.m = n.experts,
                    .n = n.hidden,
                    .k = n.tokens,
                    .a = {scratch.dlogits, n.experts, true},
                    .b = {a.x.data, n.hidden},
                    .in = DType::f32,
                    .out = a.dgate.data,
                    .out_stride = n.hidden,
                    .out_type = DType::f32,
                    .beta = 1});
  products.run(on, {.m = n.tokens,
                    .n = n.hidden,
                    .k = n.experts,
                    .a = {scratch.dlogits, n.experts},
                    .b = {a.gate.data, n.hidden},
                    .in = DType::f32,
                    .out = a.dx.data,
                    .out_stride = n.hidden,
                    .out_type = DType::f32,
                    .beta = 1});
}

// The same with x and dx bf16, from scratch.split: x is exact, and of the gate's and dlogits' products for dx, which is
// rounded to 8 bits, those of low parts are left out.
void add_split_gradients(Products& products, cudaStream_t on, const Sizes& n, const Router::Backward& a,
                         const BackwardScratch& scratch) {
  if (n.hidden == 0) return;
  const std::int64_t stride = padded(n), row = (parts + 1) * stride, size = n.experts * n.hidden;
  split_gate(on, n, false, a.gate, scratch.gate);
  products.run(on, {.m = parts * stride,
                    .n = n.hidden,
                    .k = n.tokens,
                    .a = {scratch.split, row, true},
                    .b = {a.x.data, n.hidden},
                    .in = DType::bf16,
                    .out = scratch.dgate,
                    .out_stride = n.hidden,
                    .out_type = DType::f32});
  add_parts_kernel<<<static_cast<unsigned>(blocks_for(size, threads)), threads, 0, on>>>(
      size, stride * n.hidden, scratch.dgate, data<float>(a.dgate));
  ANANKE_CUDA_LAUNCHED("router: gradient of the gate");
  products.run(on, {.m = n.tokens,
                    .n = n.hidden,
                    .k = parts * stride,
                    .a = {scratch.split + stride, row},
                    .b = {scratch.gate, n.hidden},
                    .in = DType::bf16,
                    .out = a.dx.data,
                    .out_stride = n.hidden,
                    .out_type = DType::bf16,
                    .beta = 1});
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
  const cudaStream_t on = raw(stream);
  Carve saved_carve(a.saved), scratch_carve(a.workspace);
  const Saved saved(saved_carve, n);
  const ForwardScratch scratch(scratch_carve, n);
  make_logits(products_, on, n, a, saved, scratch);
  if (n.tokens > 0) {
    launch_decision(facts_, on, n,
                    {n.tokens, static_cast<int>(n.experts), static_cast<int>(n.k), static_cast<int>(tokens_per_warp(n)),
                     a.rule, a.replay, data<const float>(a.bias), a.x.dtype == DType::bf16 ? scratch.logits : nullptr,
                     static_cast<int>(padded(n)), saved.rows, saved.log_sums, data<std::int32_t>(a.indices),
                     data<float>(a.weights), scratch.counts, a.statistics ? scratch.sums : nullptr},
                    faults_.sink());
  }
  statistics_kernel<<<static_cast<unsigned>(blocks_for(2 * n.experts + 2, statistics_columns)),
                      dim3(statistics_columns, statistics_groups), 0, on>>>(
      forward_blocks(n), static_cast<int>(n.experts), scratch.sums, scratch.counts, data<std::int32_t>(a.counts),
      data<double>(a.statistics));
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
  const bool split = a.x.dtype == DType::bf16;
  launch_gradient(on, {n.tokens, static_cast<int>(n.experts), static_cast<int>(n.k), a.rule, saved.rows, saved.log_sums,
                       data<const std::int32_t>(a.indices), data<const float>(a.dweights), data<const float>(a.factors),
                       scratch.dlogits, split ? scratch.split : nullptr, static_cast<int>(padded(n))});
  (a.x.dtype == DType::f32 ? add_gradients : add_split_gradients)(products_, on, n, a, scratch);
}

}  // namespace ananke::cuda
