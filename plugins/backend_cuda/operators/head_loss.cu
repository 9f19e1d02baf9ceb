#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/head_loss.h"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

using Sizes = HeadLoss::Sizes;

constexpr int threads = 512;
// Tokens of a chunk: each chunk reads and writes dweight once, so they are as many as a gigabyte of logits allows.
constexpr std::int64_t chunk_elements = 1 << 28, fewest_tokens = 128, most_tokens = 8192;

std::int64_t chunk_of(const Sizes& n) {
  const std::int64_t fitting = chunk_elements / std::max<std::int64_t>(1, n.vocabulary) / fewest_tokens * fewest_tokens;
  return std::min(std::max<std::int64_t>(1, n.tokens), std::clamp(fitting, fewest_tokens, most_tokens));
}

struct Scratch {
  float* logits;   // [chunk, V]; with bf16, their gradients take the first half of each row
  double* losses;  // [chunk]
};

Scratch layout(Carve& carve, const Sizes& n) {
  Scratch scratch{};
  scratch.logits = carve.take<float>(chunk_of(n) * n.vocabulary);
  scratch.losses = carve.take<double>(chunk_of(n));
  return scratch;
}

struct TopAndSum {
  float top;
  double sum;  // of e^(x - top)
};

// One pass: each thread rescales its sum where it meets a larger value. N elements at once.
template <int N>
__device__ TopAndSum top_and_sum(std::int64_t n, const float* x, float* floats, double* doubles) {
  float top = -INFINITY, sum = 0;
#pragma unroll 2
  for (std::int64_t i = threadIdx.x * N; i < n; i += threads * N) {
    const Pack<float, N> values = load<N>(x + i);
    float most = values.at[0];
#pragma unroll
    for (int j = 1; j < N; ++j) most = fmaxf(most, values.at[j]);
    if (most > top) {
      sum *= expf(top - most);
      top = most;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) sum += expf(values.at[j] - top);
  }
  const float most = block_max(top, floats);
  const double mine = sum == 0 ? 0.0 : static_cast<double>(sum) * static_cast<double>(expf(top - most));
  return {most, block_sum(mine, doubles)};
}

// logits -> gradient of scale * loss, in place: a block of gradients is written where all values have been read.
template <int N, class T>
__device__ void write_gradients(std::int64_t n, float* logits, float top, float factor, float scale, int target) {
  T* out = reinterpret_cast<T*>(logits);
  for (std::int64_t begin = 0; begin < n; begin += threads * N) {
    const std::int64_t i = begin + threadIdx.x * N;
    Pack<T, N> gradients{};
    if (i < n) {
      const Pack<float, N> values = load<N>(logits + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float gradient = expf(values.at[j] - top) * factor;
        gradients.at[j] = from_float<T>(i + j == target ? gradient - scale : gradient);
      }
    }
    if constexpr (sizeof(T) < sizeof(float)) __syncthreads();
    if (i < n) store(out + i, gradients);
  }
}

// A block per token. `scale` null: the loss alone.
template <int N, class T>
__global__ void __launch_bounds__(threads)
    loss_kernel(std::int64_t first, std::int64_t vocabulary, const int* targets, float* logits, const float* scale,
                double* losses, FaultSink faults) {
  __shared__ float floats[32];
  __shared__ double doubles[32];
  const std::int64_t t = blockIdx.x;
  const int target = targets[first + t];
  float* row = logits + t * vocabulary;
  if (target < 0 || target >= vocabulary) {
    if (threadIdx.x == 0) {
      losses[t] = 0;
      if (target >= 0) report(faults, Fault::target, target, vocabulary, first + t);
    }
    T* out = reinterpret_cast<T*>(row);
    for (std::int64_t i = threadIdx.x; scale && i < vocabulary; i += threads) out[i] = from_float<T>(0);
    return;
  }
  const double wanted = row[target];
  const TopAndSum all = top_and_sum<N>(vocabulary, row, floats, doubles);
  if (threadIdx.x == 0) losses[t] = static_cast<double>(all.top) + log(all.sum) - wanted;
  if (!scale) return;
  write_gradients<N, T>(vocabulary, row, all.top, static_cast<float>(static_cast<double>(*scale) / all.sum), *scale,
                        target);
}

// One block: loss += sum of losses.
__global__ void sum_kernel(std::int64_t n, const double* losses, double* loss) {
  __shared__ double scratch[32];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += threads) sum += losses[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) *loss += sum;
}

struct Call {
  Products& products;
  cudaStream_t stream;
  Sizes n;
  DType elements;
  Scratch scratch;
  FaultSink faults;

  const std::byte* tokens(const TensorView& x, std::int64_t first) const {
    return static_cast<const std::byte*>(x.data) + first * n.hidden * static_cast<std::int64_t>(size_of(elements));
  }
};

// Logits of tokens [first, first + count), their losses added up, and, with `scale`, their gradients in scratch.logits.
void chunk_loss(const Call& c, const TensorView& x, const TensorView& weight, const TensorView& targets,
                std::int64_t first, std::int64_t count, const float* scale, const TensorView& loss,
                const TensorView& logits) {
  const std::int64_t vocabulary = c.n.vocabulary;
  c.products.run(c.stream, {.m = count,
                            .n = vocabulary,
                            .k = c.n.hidden,
                            .a = {c.tokens(x, first), c.n.hidden},
                            .b = {weight.data, c.n.hidden, true},
                            .in = c.elements,
                            .out = c.scratch.logits,
                            .out_stride = vocabulary,
                            .out_type = DType::f32});
  if (logits) {
    check(cudaMemcpyAsync(data<float>(logits) + first * vocabulary, c.scratch.logits,
                          static_cast<std::size_t>(count * vocabulary) * sizeof(float), cudaMemcpyDeviceToDevice,
                          c.stream),
          "copy logits");
  }
  with_elements(c.elements, [&](auto element) {
    using T = decltype(element);
    with_packs<float>(vocabulary, {c.scratch.logits}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      loss_kernel<N, T><<<static_cast<unsigned>(count), threads, 0, c.stream>>>(
          first, vocabulary, data<const int>(targets), c.scratch.logits, scale, c.scratch.losses, c.faults);
      ANANKE_CUDA_LAUNCHED("head_loss: losses");
    });
  });
  sum_kernel<<<1, threads, 0, c.stream>>>(count, c.scratch.losses, data<double>(loss));
  ANANKE_CUDA_LAUNCHED("head_loss: sum");
}

// dx of the chunk, and its part of dweight.
void chunk_gradients(const Call& c, const HeadLoss::ForwardBackward& a, std::int64_t first, std::int64_t count) {
  const std::int64_t stride = c.n.vocabulary * static_cast<std::int64_t>(sizeof(float) / size_of(c.elements));
  c.products.run(c.stream, {.m = count,
                            .n = c.n.hidden,
                            .k = c.n.vocabulary,
                            .a = {c.scratch.logits, stride},
                            .b = {a.weight.data, c.n.hidden},
                            .in = c.elements,
                            .out = const_cast<std::byte*>(c.tokens(a.dx, first)),
                            .out_stride = c.n.hidden,
                            .out_type = c.elements});
  c.products.run(c.stream, {.m = c.n.vocabulary,
                            .n = c.n.hidden,
                            .k = count,
                            .a = {c.scratch.logits, stride, true},
                            .b = {c.tokens(a.x, first), c.n.hidden},
                            .in = c.elements,
                            .out = a.dweight.data,
                            .out_stride = c.n.hidden,
                            .out_type = DType::f32,
                            .beta = 1});
}

}  // namespace

std::size_t CudaHeadLoss::workspace(const Sizes& s) const {
  Carve carve;
  layout(carve, s);
  return carve.used();
}

void CudaHeadLoss::forward(Stream& stream, const Forward& a) {
  const DType elements = elements_of(a.x);
  const Sizes n = arguments::check(a, elements);
  expect_region("head_loss forward", "workspace", a.workspace, workspace(n));
  Carve carve(a.workspace);
  const Call call{products_, raw(stream), n, elements, layout(carve, n), faults_.sink()};
  const std::int64_t chunk = chunk_of(n);
  for (std::int64_t t = 0; t < n.tokens; t += chunk) {
    chunk_loss(call, a.x, a.weight, a.targets, t, std::min(chunk, n.tokens - t), nullptr, a.loss, a.logits);
  }
}

void CudaHeadLoss::forward_backward(Stream& stream, const ForwardBackward& a) {
  const DType elements = elements_of(a.x);
  const Sizes n = arguments::check(a, elements);
  expect_region("head_loss forward_backward", "workspace", a.workspace, workspace(n));
  Carve carve(a.workspace);
  const Call call{products_, raw(stream), n, elements, layout(carve, n), faults_.sink()};
  const std::int64_t chunk = chunk_of(n);
  for (std::int64_t t = 0; t < n.tokens; t += chunk) {
    const std::int64_t count = std::min(chunk, n.tokens - t);
    chunk_loss(call, a.x, a.weight, a.targets, t, count, data<const float>(a.scale), a.loss, a.logits);
    chunk_gradients(call, a, t, count);
  }
}

}  // namespace ananke::cuda
