#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/momentum.h"
#include "runtime/operators/arguments.h"

namespace ananke::cuda {
namespace {

constexpr int threads = 256;

// From `start` to `end` by `weight`, from the nearer side, as torch does; each operation rounded.
__device__ float lerp(float start, float end, float weight) {
  const float way = __fsub_rn(end, start);
  return weight < 0.5f ? __fadd_rn(start, __fmul_rn(weight, way))
                       : __fsub_rn(end, __fmul_rn(way, __fsub_rn(1.0f, weight)));
}

template <int N>
__global__ void accumulate_kernel(std::int64_t packs, float mu, float mix, bool nesterov, const float* gradient,
                                  const float* scale, const int* finite, float* momentum, float* out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= packs || *finite == 0) return;
  const float by = *scale;
  const Pack<float, N> from = load<N>(gradient + i * N);
  Pack<float, N> m = load<N>(momentum + i * N), direction;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float g = __fmul_rn(from.at[j], by);
    m.at[j] = lerp(m.at[j], g, mix);
    direction.at[j] = nesterov ? lerp(g, m.at[j], mu) : m.at[j];
  }
  store(momentum + i * N, m);
  store(out + i * N, direction);
}

template <int N>
__global__ void apply_kernel(std::int64_t packs, float keep, float rate, const int* finite, const float* direction,
                             float* weight) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= packs || *finite == 0) return;
  const Pack<float, N> d = load<N>(direction + i * N);
  Pack<float, N> w = load<N>(weight + i * N);
#pragma unroll
  for (int j = 0; j < N; ++j) w.at[j] = __fsub_rn(__fmul_rn(w.at[j], keep), __fmul_rn(rate, d.at[j]));
  store(weight + i * N, w);
}

}  // namespace

void CudaMomentum::accumulate(Stream& stream, const Accumulate& a) {
  const std::int64_t n = arguments::check(a);
  if (n == 0) return;
  with_packs<float>(n, {a.gradient.data, a.momentum.data, a.out.data}, [&](auto width) {
    constexpr int N = decltype(width)::value;
    const auto blocks = static_cast<unsigned>(blocks_for(n / N, threads));
    accumulate_kernel<N><<<blocks, threads, 0, raw(stream)>>>(
        n / N, static_cast<float>(a.mu), static_cast<float>(1 - a.mu), a.nesterov, data<float>(a.gradient),
        data<float>(a.scale), data<int>(a.finite), data<float>(a.momentum), data<float>(a.out));
    ANANKE_CUDA_LAUNCHED("momentum accumulate");
  });
}

void CudaMomentum::apply(Stream& stream, const Apply& a) {
  const std::int64_t n = arguments::check(a);
  if (n == 0) return;
  with_packs<float>(n, {a.weight.data, a.direction.data}, [&](auto width) {
    constexpr int N = decltype(width)::value;
    const auto blocks = static_cast<unsigned>(blocks_for(n / N, threads));
    apply_kernel<N><<<blocks, threads, 0, raw(stream)>>>(n / N, static_cast<float>(a.keep), static_cast<float>(a.rate),
                                                         data<int>(a.finite), data<float>(a.direction),
                                                         data<float>(a.weight));
    ANANKE_CUDA_LAUNCHED("momentum apply");
  });
}

}  // namespace ananke::cuda
