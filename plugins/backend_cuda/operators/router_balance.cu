// Small sums in f64, in the host backend's order where the order shows.
#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "plugins/backend_cuda/operators/router_balance.h"
#include "runtime/operators/arguments.h"

namespace ananke::cuda {
namespace {

using Sizes = arguments::BalanceSizes;

constexpr int threads = 256;

__global__ void collect_kernel(Sizes n, const double* statistics, double tokens, double targets, double* total) {
  for (std::int64_t e = threadIdx.x; e < n.experts; e += threads) {
    double sum = 0;
    for (std::int64_t l = 0; l < n.layers; ++l) sum += statistics[l * n.row + e];
    total[e] = sum;
  }
  if (threadIdx.x > 0) return;
  total[n.experts] = tokens;
  total[n.experts + 1] = targets;
}

__global__ void factors_kernel(Sizes n, const double* statistics, const double* total, const float* scale,
                               double auxiliary, double z, float* factors, double* losses) {
  __shared__ double scratch[32];
  const double tokens = total[n.experts], rows = tokens * static_cast<double>(n.layers);
  const double share = total[n.experts + 1] * static_cast<double>(*scale);
  if (rows == 0) {
    for (std::int64_t e = threadIdx.x; e <= n.experts; e += threads) factors[e] = 0;
    return;
  }
  const double weight = auxiliary * static_cast<double>(n.experts) / rows / rows * share;
  const double z_factor = z / tokens * share;
  double balance = 0, squares = 0;
  for (std::int64_t e = threadIdx.x; e < n.experts; e += threads) {
    const double factor = weight * total[e];
    factors[e] = static_cast<float>(factor);
    for (std::int64_t l = 0; l < n.layers; ++l) balance += factor * statistics[l * n.row + n.experts + e];
  }
  for (std::int64_t l = threadIdx.x; l < n.layers; l += threads) {
    squares += z_factor * statistics[l * n.row + 2 * n.experts];
  }
  balance = block_sum(balance, scratch);
  squares = block_sum(squares, scratch);
  if (threadIdx.x > 0) return;
  factors[n.experts] = static_cast<float>(z_factor);
  losses[0] += balance;
  losses[1] += squares;
}

// A block per layer.
__global__ void load_kernel(Sizes n, std::int64_t microbatches, const double* statistics, double* load) {
  const std::int64_t l = blockIdx.x;
  for (std::int64_t e = threadIdx.x; e <= n.experts; e += threads) {
    const std::int64_t column = e < n.experts ? e : 2 * n.experts + 1;  // the last: entropies
    double sum = 0;
    for (std::int64_t m = 0; m < microbatches; ++m) sum += statistics[(m * n.layers + l) * n.row + column];
    load[l * (n.experts + 1) + e] = sum;
  }
}

// A block per layer. Counts are whole numbers below 2^53 / experts: their sum and the comparisons are exact.
__global__ void update_bias_kernel(Sizes n, const double* load, const float* rate, const int* finite, float* bias) {
  __shared__ double scratch[32];
  __shared__ double shift;
  if (*finite == 0) return;
  const double* counts = load + blockIdx.x * n.row;
  const double number = static_cast<double>(n.experts), by = rate[blockIdx.x];
  double sum = 0;
  for (std::int64_t e = threadIdx.x; e < n.experts; e += threads) sum += counts[e];
  sum = block_sum(sum, scratch);
  const auto delta = [&](std::int64_t e) {
    const double scaled = counts[e] * number;
    return by * (static_cast<double>(sum > scaled) - static_cast<double>(sum < scaled));
  };
  if (threadIdx.x == 0) {
    double total = 0;
    for (std::int64_t e = 0; e < n.experts; ++e) total += delta(e);
    shift = total / number;
  }
  __syncthreads();
  for (std::int64_t e = threadIdx.x; e < n.experts; e += threads) {
    float& out = bias[blockIdx.x * n.experts + e];
    out = static_cast<float>(static_cast<double>(out) + (delta(e) - shift));
  }
}

struct Ends {
  double least, most, sum;
};

// Over one row, by one warp.
template <class T>
__device__ Ends ends_of(std::int64_t n, const T* x) {
  Ends ends{INFINITY, -INFINITY, 0};
  for (std::int64_t i = threadIdx.x; i < n; i += 32) {
    const double value = x[i];
    ends.least = fmin(ends.least, value);
    ends.most = fmax(ends.most, value);
    ends.sum += value;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    ends.least = fmin(ends.least, __shfl_xor_sync(all_lanes, ends.least, step));
    ends.most = fmax(ends.most, __shfl_xor_sync(all_lanes, ends.most, step));
  }
  ends.sum = warp_sum(ends.sum);
  return ends;
}

// A warp per layer.
__global__ void summarise_kernel(Sizes n, const double* load, const float* bias, double* summary) {
  const std::int64_t l = blockIdx.x;
  const Ends loads = ends_of(n.experts, load + l * n.row);
  Ends biases{0, 0, 0};
  if (bias) biases = ends_of(n.experts, bias + l * n.experts);
  if (threadIdx.x > 0) return;
  double* out = summary + l * RouterBalance::summary_size;
  out[0] = loads.least;
  out[1] = loads.most;
  out[2] = loads.sum;
  out[3] = load[l * n.row + n.experts];
  out[4] = biases.least;
  out[5] = biases.most;
}

}  // namespace

void CudaRouterBalance::collect(Stream& stream, const Collect& a) {
  const Sizes n = arguments::check(a);
  collect_kernel<<<1, threads, 0, raw(stream)>>>(n, data<double>(a.statistics), static_cast<double>(a.tokens),
                                                 static_cast<double>(a.targets), data<double>(a.total));
  ANANKE_CUDA_LAUNCHED("router balance collect");
}

void CudaRouterBalance::factors(Stream& stream, const Factors& a) {
  const Sizes n = arguments::check(a);
  factors_kernel<<<1, threads, 0, raw(stream)>>>(n, data<double>(a.statistics), data<double>(a.total),
                                                 data<float>(a.scale), a.auxiliary_coefficient, a.z_coefficient,
                                                 data<float>(a.factors), data<double>(a.losses));
  ANANKE_CUDA_LAUNCHED("router balance factors");
}

void CudaRouterBalance::load(Stream& stream, const Load& a) {
  const Sizes n = arguments::check(a);
  if (n.layers == 0) return;
  load_kernel<<<static_cast<unsigned>(n.layers), threads, 0, raw(stream)>>>(
      n, a.statistics.shape[0], data<double>(a.statistics), data<double>(a.load));
  ANANKE_CUDA_LAUNCHED("router balance load");
}

void CudaRouterBalance::update_bias(Stream& stream, const UpdateBias& a) {
  const Sizes n = arguments::check(a);
  if (n.layers == 0) return;
  update_bias_kernel<<<static_cast<unsigned>(n.layers), threads, 0, raw(stream)>>>(
      n, data<double>(a.load), data<float>(a.rate), data<int>(a.finite), data<float>(a.bias));
  ANANKE_CUDA_LAUNCHED("router balance update_bias");
}

void CudaRouterBalance::summarise(Stream& stream, const Summarise& a) {
  const Sizes n = arguments::check(a);
  if (n.layers == 0) return;
  summarise_kernel<<<static_cast<unsigned>(n.layers), 32, 0, raw(stream)>>>(
      n, data<double>(a.load), data<const float>(a.bias), data<double>(a.summary));
  ANANKE_CUDA_LAUNCHED("router balance summarise");
}

}  // namespace ananke::cuda
