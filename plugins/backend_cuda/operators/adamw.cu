#include <cmath>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/adamw.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "runtime/operators/arguments.h"

namespace ananke::cuda {
namespace {

constexpr int threads = 256;

// What is computed once per call, in f64, and then used in f32, as torch does.
struct Factors {
  float keep, mix1, beta2, mix2, rate, correction, eps;
};

Factors factors_of(const AdamWUpdate::Arguments& a) {
  const double step = static_cast<double>(a.step);
  return {static_cast<float>(1 - a.lr * a.weight_decay),
          static_cast<float>(1 - a.beta1),
          static_cast<float>(a.beta2),
          static_cast<float>(1 - a.beta2),
          static_cast<float>(a.lr / (1 - std::pow(a.beta1, step))),
          static_cast<float>(std::sqrt(1 - std::pow(a.beta2, step))),
          static_cast<float>(a.eps)};
}

// The intrinsics keep the compiler from contracting a product and a sum into one rounding.
__device__ void update(const Factors& f, float gradient, float scale, float& weight, float& exp_avg,
                       float& exp_avg_sq) {
  const float g = __fmul_rn(gradient, scale);
  const float m = __fadd_rn(exp_avg, __fmul_rn(f.mix1, __fsub_rn(g, exp_avg)));
  const float v = __fadd_rn(__fmul_rn(f.beta2, exp_avg_sq), __fmul_rn(__fmul_rn(f.mix2, g), g));
  exp_avg = m;
  exp_avg_sq = v;
  const float divisor = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), f.correction), f.eps);
  weight = __fsub_rn(__fmul_rn(weight, f.keep), __fdiv_rn(__fmul_rn(f.rate, m), divisor));
}

template <int N, class T>
__global__ void update_kernel(std::int64_t packs, Factors f, const T* gradient, const float* scale, const int* finite,
                              T* weight, T* exp_avg, T* exp_avg_sq) {
  if (*finite == 0) return;
  const float by = *scale;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < packs; i += stride) {
    const Pack<T, N> g = load<N>(gradient + i * N);
    Pack<T, N> w = load<N>(weight + i * N), m = load<N>(exp_avg + i * N), v = load<N>(exp_avg_sq + i * N);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float one = to_float(w.at[j]), mean = to_float(m.at[j]), square = to_float(v.at[j]);
      update(f, to_float(g.at[j]), by, one, mean, square);
      w.at[j] = from_float<T>(one);
      m.at[j] = from_float<T>(mean);
      v.at[j] = from_float<T>(square);
    }
    store(weight + i * N, w);
    store(exp_avg + i * N, m);
    store(exp_avg_sq + i * N, v);
  }
}

}  // namespace

void CudaAdamW::update(Stream& stream, const Arguments& a) {
  const DType elements = elements_of(a.weight);
  const std::int64_t n = arguments::check(a, elements);
  if (n == 0) return;
  with_elements(elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(n, {a.weight.data, a.gradient.data, a.exp_avg.data, a.exp_avg_sq.data}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      const auto blocks = static_cast<unsigned>(blocks_for(n / N, threads));
      update_kernel<N><<<blocks, threads, 0, raw(stream)>>>(
          n / N, factors_of(a), data<const T>(a.gradient), data<const float>(a.scale), data<const int>(a.finite),
          data<T>(a.weight), data<T>(a.exp_avg), data<T>(a.exp_avg_sq));
      ANANKE_CUDA_LAUNCHED("adamw");
    });
  });
}

}  // namespace ananke::cuda
