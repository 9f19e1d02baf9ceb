#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/add_rms_norm.h"
#include "plugins/backend_cuda/operators/add_rms_norm_backward.cuh"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/floats.cuh"
#include "plugins/backend_cuda/operators/partial_sums.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

constexpr int most_threads = 512;
constexpr std::int64_t columns_per_piece = 8192;  // of dweight, in shared memory
constexpr std::int64_t most_partial_sums = 512;   // of dweight: rows, one of a block

// Of the backward pass of rows that no block's shared memory holds.
std::int64_t rows_per_block(std::int64_t rows) {
  return std::max<std::int64_t>(16, blocks_for(rows, most_partial_sums));
}

// Rows of at most most_threads * held packs wait in registers: a thread has `held` of a row, blockDim.x apart.
constexpr int held = 4;

bool fits_registers(std::int64_t packs) { return packs <= most_threads * held; }

int threads_holding(std::int64_t packs) { return static_cast<int>((blocks_for(packs, held) + 31) / 32 * 32); }

int threads_for(std::int64_t packs) {
  return static_cast<int>(std::clamp<std::int64_t>((packs + 31) / 32 * 32, 32, most_threads));
}

// A block per row.
template <int N, class T>
__global__ void __launch_bounds__(most_threads)
    held_forward_kernel(std::int64_t packs, double eps, const T* x, const T* delta, const float* weight, T* h, T* y,
                        float* inverse_rms) {
  __shared__ float scratch[32];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * packs * N;
  Pack<T, N> values[held], more[held];
#pragma unroll
  for (int u = 0; u < held; ++u) {
    const std::int64_t i = threadIdx.x + u * blockDim.x;
    if (i >= packs) continue;
    values[u] = load<N>(x + row + i * N);
    if (delta) more[u] = load<N>(delta + row + i * N);
  }
  float squares = 0;
#pragma unroll
  for (int u = 0; u < held; ++u) {
    const std::int64_t i = threadIdx.x + u * blockDim.x;
    if (i >= packs) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (delta) values[u].at[j] = from_float<T>(to_float(values[u].at[j]) + to_float(more[u].at[j]));
      squares += to_float(values[u].at[j]) * to_float(values[u].at[j]);
    }
    if (h && (delta || h != x)) store_passing(h + row + i * N, values[u]);
  }
  squares = alternating_block_sum(squares, scratch);
  const auto inverse =
      static_cast<float>(1 / sqrt(static_cast<double>(squares) / static_cast<double>(packs * N) + eps));
  if (threadIdx.x == 0) inverse_rms[blockIdx.x] = inverse;
#pragma unroll
  for (int u = 0; u < held; ++u) {
    const std::int64_t i = threadIdx.x + u * blockDim.x;
    if (i >= packs) continue;
    const Pack<float, N> by = load_floats<N>(weight + i * N);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.at[j] = from_float<T>(to_float(values[u].at[j]) * inverse * by.at[j]);
    store_passing(y + row + i * N, out);
  }
}

// A block per row. Each thread reads in the second pass what it wrote itself in the first.
template <int N, class T>
__global__ void __launch_bounds__(most_threads)
    forward_kernel(std::int64_t packs, double eps, const T* x, const T* delta, const float* weight, T* h, T* y,
                   float* inverse_rms) {
  __shared__ double scratch[32];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * packs * N;
  double squares = 0;
  for (std::int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const std::int64_t at = row + i * N;
    Pack<T, N> values = load<N>(x + at);
    if (delta) {
      const Pack<T, N> more = load<N>(delta + at);
#pragma unroll
      for (int j = 0; j < N; ++j) values.at[j] = from_float<T>(to_float(values.at[j]) + to_float(more.at[j]));
    }
    if (h && (delta || h != x)) store(h + at, values);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const double value = to_float(values.at[j]);
      squares += value * value;
    }
  }
  squares = block_sum(squares, scratch);
  const float inverse = static_cast<float>(1 / sqrt(squares / static_cast<double>(packs * N) + eps));
  if (threadIdx.x == 0) inverse_rms[blockIdx.x] = inverse;
  const T* from = delta ? h : x;
  for (std::int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const Pack<T, N> values = load<N>(from + row + i * N);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.at[j] = from_float<T>(to_float(values.at[j]) * inverse * weight[i * N + j]);
    store(y + row + i * N, out);
  }
}

// A block per `share` rows, one after the other: dh, and the block's part of dweight (add_rms_norm_backward.cuh).
// Where a row is wider than `columns_per_piece`, blockIdx.y says which piece of dweight is this block's; the first
// piece's block writes dh.
template <int N, class T>
__global__ void __launch_bounds__(most_threads)
    backward_kernel(std::int64_t rows, std::int64_t share, std::int64_t packs, const T* h, const float* weight,
                    const T* dy, const T* dh_in, T* dh, const float* inverse_rms, float* partial) {
  extern __shared__ float dweight[];
  __shared__ double scratch[32];
  const std::int64_t width = packs * N;
  const std::int64_t first = blockIdx.y * columns_per_piece, last = min(first + columns_per_piece, width);
  for (std::int64_t j = threadIdx.x; j < last - first; j += blockDim.x) dweight[j] = 0;
  __syncthreads();
  const std::int64_t begin = blockIdx.x * share, end = min(begin + share, rows);
  for (std::int64_t t = begin; t < end; ++t) {
    const float r = inverse_rms[t];
    for (std::int64_t i = first / N + threadIdx.x; i < last / N; i += blockDim.x) {
      const Pack<T, N> value = load<N>(h + t * width + i * N), gradient = load<N>(dy + t * width + i * N);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dweight[i * N + j - first] += to_float(gradient.at[j]) * to_float(value.at[j]) * r;
      }
    }
    if (blockIdx.y != 0) continue;
    double product = 0;
    for (std::int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
      const Pack<T, N> value = load<N>(h + t * width + i * N), gradient = load<N>(dy + t * width + i * N);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        product += static_cast<double>(weight[i * N + j] * to_float(gradient.at[j])) *
                   static_cast<double>(to_float(value.at[j]));
      }
    }
    product = block_sum(product, scratch);
    const double inverse = r;
    const auto pull = static_cast<float>(inverse * inverse * inverse * product / static_cast<double>(width));
    for (std::int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
      const std::int64_t at = t * width + i * N;
      const Pack<T, N> value = load<N>(h + at), gradient = load<N>(dy + at);
      Pack<T, N> before{}, out;
      if (dh_in) before = load<N>(dh_in + at);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float own = r * weight[i * N + j] * to_float(gradient.at[j]) - to_float(value.at[j]) * pull;
        out.at[j] = from_float<T>(dh_in ? to_float(before.at[j]) + own : own);
      }
      store(dh + at, out);
    }
  }
  __syncthreads();
  for (std::int64_t j = threadIdx.x; j < last - first; j += blockDim.x) {
    partial[blockIdx.x * width + first + j] = dweight[j];
  }
}

}  // namespace

std::size_t CudaAddRmsNorm::saved(const Sizes& s) const {
  Carve carve;
  carve.take<float>(s.rows);
  return carve.used();
}

std::size_t CudaAddRmsNorm::workspace(const Sizes& s) const {
  Carve carve;
  carve.take<float>(std::min(s.rows, most_partial_sums) * s.width);
  return carve.used();
}

void CudaAddRmsNorm::forward(Stream& stream, const Forward& a) {
  const DType elements = elements_of(a.x);
  const Sizes n = arguments::check(a, elements);
  expect_region("add_rms_norm forward", "saved", a.saved, saved(n));
  if (n.rows == 0 || n.width == 0) return;
  float* inverse = Carve(a.saved).take<float>(n.rows);
  with_elements(elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(n.width, {a.x.data, a.delta.data, a.weight.data, a.h.data, a.y.data}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      const std::int64_t packs = n.width / N;
      const bool holds = fits_registers(packs);
      const auto kernel = holds ? held_forward_kernel<N, T> : forward_kernel<N, T>;
      kernel<<<static_cast<unsigned>(n.rows), holds ? threads_holding(packs) : threads_for(packs), 0, raw(stream)>>>(
          packs, a.eps, data<const T>(a.x), data<const T>(a.delta), data<const float>(a.weight), data<T>(a.h),
          data<T>(a.y), inverse);
      ANANKE_CUDA_LAUNCHED("add_rms_norm forward");
    });
  });
}

void CudaAddRmsNorm::backward(Stream& stream, const Backward& a) {
  constexpr const char* op = "add_rms_norm backward";
  const DType elements = elements_of(a.h);
  const Sizes n = arguments::check(a, elements);
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  if (n.rows == 0 || n.width == 0) return;
  const cudaStream_t on = raw(stream);
  const float* inverse = Carve(a.saved).take<float>(n.rows);
  float* partial = Carve(a.workspace).take<float>(std::min(n.rows, most_partial_sums) * n.width);
  std::int64_t blocks = 0;
  with_elements(elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(n.width, {a.h.data, a.weight.data, a.dy.data, a.dh_in.data, a.dh.data}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      const RowsBackward<T> rows{n.rows,
                                 n.width / N,
                                 data<const T>(a.h),
                                 data<const float>(a.weight),
                                 data<const T>(a.dy),
                                 data<const T>(a.dh_in),
                                 data<T>(a.dh),
                                 inverse,
                                 partial};
      if constexpr (N > 1) {
        const RingShape shape = ring_shape(n.rows, rows.packs);
        if (shape.shared > 0) {
          blocks = shape.blocks;
          launch_ring<N>(on, shape, rows);
          return;
        }
      }
      const std::int64_t share = rows_per_block(n.rows);
      blocks = blocks_for(n.rows, share);
      const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(blocks_for(n.width, columns_per_piece)));
      const std::size_t shared = static_cast<std::size_t>(std::min(n.width, columns_per_piece)) * sizeof(float);
      backward_kernel<N><<<grid, threads_for(rows.packs), shared, on>>>(n.rows, share, rows.packs, rows.h, rows.weight,
                                                                        rows.dy, rows.dh_in, rows.dh, inverse, partial);
      ANANKE_CUDA_LAUNCHED(op);
    });
  });
  add_partial_sums(on, blocks, n.width, n.width, partial, data<float>(a.dweight));
}

}  // namespace ananke::cuda
