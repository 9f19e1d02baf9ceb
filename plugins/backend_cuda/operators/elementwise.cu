#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/elementwise.h"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "runtime/operators/arguments.h"

namespace ananke::cuda {
namespace {

constexpr int threads = 256;
constexpr int streams = 4;         // compute, and what overlaps with it
constexpr int most_blocks = 1024;  // partial sums of one call
constexpr int elements_per_thread = 16;

// In the memory of a stream. `done` is 0 between calls.
struct PartialSums {
  double sums[most_blocks];
  unsigned done;
};
constexpr std::size_t slot_bytes = (sizeof(PartialSums) + 255) / 256 * 256;

// How many blocks share n elements: by n alone, so that sums are the same on every device.
unsigned blocks_of(std::int64_t n) {
  return static_cast<unsigned>(std::min<std::int64_t>(most_blocks, blocks_for(n, threads * elements_per_thread)));
}

template <int N, class T, class Added>
__global__ void add_kernel(std::int64_t packs, const T* a, const Added* b, T* y) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= packs) return;
  const Pack<T, N> first = load<N>(a + i * N);
  const Pack<Added, N> second = load<N>(b + i * N);
  Pack<T, N> sum;
#pragma unroll
  for (int j = 0; j < N; ++j) sum.at[j] = from_float<T>(to_float(first.at[j]) + to_float(second.at[j]));
  store(y + i * N, sum);
}

// Each block leaves its sum; the last one to do so adds all of them in order.
template <int N, class T>
__global__ void square_sum_kernel(std::int64_t packs, const T* x, PartialSums* partial, double* total) {
  __shared__ double scratch[32];
  __shared__ bool last;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * threads;
  double sum = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < packs; i += stride) {
    const Pack<T, N> values = load<N>(x + i * N);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const double value = to_float(values.at[j]);
      sum += value * value;
    }
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    partial->sums[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(&partial->done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  sum = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += threads) sum += __ldcg(&partial->sums[i]);
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    *total += sum;
    partial->done = 0;
  }
}

// Terms are a few per layer.
__global__ void add_in_order_kernel(std::int64_t n, const double* terms, double* total) {
  double sum = *total;
  for (std::int64_t i = 0; i < n; ++i) sum += terms[i];
  *total = sum;
}

__global__ void reciprocal_kernel(const double* x, float* y) { *y = *x == 0 ? 0.0f : static_cast<float>(1 / *x); }

__global__ void clip_kernel(const double* square_sum, const double* loss, double most, float* scale, int* finite) {
  const double norm = sqrt(*square_sum);
  *finite = isfinite(norm) && isfinite(*loss) ? 1 : 0;
  *scale = most > 0 && norm > most ? static_cast<float>(most / (norm + 1e-6)) : 1.0f;
}

__device__ unsigned long long splitmix64(unsigned long long x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ unsigned bits_of(bf16 x) { return __bfloat16_as_ushort(x); }

// Sums of integers are the same in any order, and in any number of blocks: many, so that none is left to work alone.
// What bounds it is integer arithmetic, about 19 operations an element.
constexpr std::int64_t most_hash_blocks = 8448;
constexpr int hash_at_once = 4;  // packs that a thread loads before it looks at them

template <int N, class T>
__device__ unsigned long long hash_of(unsigned pack, const Pack<T, N>& values) {
  unsigned long long sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    sum += splitmix64((static_cast<unsigned long long>(pack * N + j) << 32) + bits_of(values.at[j]));
  }
  return sum;
}

// x has less than 2^32 elements.
template <int N, class T>
__global__ void __launch_bounds__(threads, 8) hash_kernel(std::int64_t packs, const T* x, unsigned long long* hash) {
  __shared__ unsigned long long scratch[32];
  using Index = std::conditional_t<N == 1, std::int64_t, unsigned>;  // no sum of these overflows
  const auto stride = static_cast<Index>(gridDim.x * threads), n = static_cast<Index>(packs);
  unsigned long long sum = 0;
  Index i = blockIdx.x * threads + threadIdx.x;
  for (; i + (hash_at_once - 1) * stride < n; i += hash_at_once * stride) {
    Pack<T, N> values[hash_at_once];
#pragma unroll
    for (int u = 0; u < hash_at_once; ++u) values[u] = load<N>(x + static_cast<std::int64_t>(i + u * stride) * N);
#pragma unroll
    for (int u = 0; u < hash_at_once; ++u) sum += hash_of<N>(static_cast<unsigned>(i + u * stride), values[u]);
  }
  for (; i < n; i += stride) sum += hash_of<N>(static_cast<unsigned>(i), load<N>(x + static_cast<std::int64_t>(i) * N));
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) atomicAdd(hash, sum);
}

__global__ void complement_kernel(unsigned long long* hash) { hash[1] = ~hash[0]; }

}  // namespace

CudaElementwise::CudaElementwise(Arena& memory)
    : partial_sums_(memory, "operators: partial sums", streams, slot_bytes) {}

void CudaElementwise::add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y) {
  const DType elements = elements_of(y);
  const bool mixed = elements == DType::bf16 && b.dtype == DType::f32;
  arguments::check_add(a, b, y, elements, mixed ? DType::f32 : elements);
  const std::int64_t n = y.elements();
  if (n == 0) return;
  const auto launch = [&](auto width, auto of_sum, auto of_added) {
    constexpr int N = decltype(width)::value;
    using T = decltype(of_sum);
    using Added = decltype(of_added);
    const auto blocks = static_cast<unsigned>(blocks_for(n / N, threads));
    add_kernel<N><<<blocks, threads, 0, raw(stream)>>>(n / N, data<const T>(a), data<const Added>(b), data<T>(y));
    ANANKE_CUDA_LAUNCHED("add");
  };
  if (mixed) {  // as many at once as f32 has in 16 bytes
    with_packs<float>(n, {a.data, b.data, y.data}, [&](auto width) { launch(width, bf16{}, float{}); });
    return;
  }
  with_elements(elements, [&](auto element) {
    with_packs<decltype(element)>(n, {a.data, b.data, y.data}, [&](auto width) { launch(width, element, element); });
  });
}

void CudaElementwise::square_sum(Stream& stream, const TensorView& x, const TensorView& sum) {
  const DType elements = elements_of(x);
  arguments::check_square_sum(x, sum, elements);
  const std::int64_t n = x.elements();
  if (n == 0) return;
  const cudaStream_t on = raw(stream);
  auto* partial = static_cast<PartialSums*>(partial_sums_.of(on).data);
  with_elements(elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(n, {x.data}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      square_sum_kernel<N><<<blocks_of(n), threads, 0, on>>>(n / N, data<const T>(x), partial, data<double>(sum));
      ANANKE_CUDA_LAUNCHED("square_sum");
    });
  });
}

void CudaElementwise::add_in_order(Stream& stream, const TensorView& terms, const TensorView& sum) {
  arguments::check_add_in_order(terms, sum);
  if (terms.elements() == 0) return;
  add_in_order_kernel<<<1, 1, 0, raw(stream)>>>(terms.elements(), data<double>(terms), data<double>(sum));
  ANANKE_CUDA_LAUNCHED("add_in_order");
}

void CudaElementwise::reciprocal(Stream& stream, const TensorView& x, const TensorView& y) {
  arguments::check_reciprocal(x, y);
  reciprocal_kernel<<<1, 1, 0, raw(stream)>>>(data<double>(x), data<float>(y));
  ANANKE_CUDA_LAUNCHED("reciprocal");
}

void CudaElementwise::clip(Stream& stream, const Clip& a) {
  arguments::check(a);
  clip_kernel<<<1, 1, 0, raw(stream)>>>(data<double>(a.square_sum), data<double>(a.loss), a.clip_norm,
                                        data<float>(a.scale), data<int>(a.finite));
  ANANKE_CUDA_LAUNCHED("clip");
}

void CudaElementwise::hash(Stream& stream, const TensorView& x, const TensorView& hash) {
  const DType elements = elements_of(x);
  arguments::check_hash(x, hash, elements);
  const cudaStream_t on = raw(stream);
  auto* out = data<unsigned long long>(hash);
  check(cudaMemsetAsync(out, 0, sizeof(*out), on), "clear a hash");
  const std::int64_t n = x.elements();
  if (n > 0) {
    with_elements(elements, [&](auto element) {
      using T = decltype(element);
      with_packs<T>(n, {x.data}, [&](auto width) {
        constexpr int N = decltype(width)::value;
        const auto blocks =
            static_cast<unsigned>(std::min(most_hash_blocks, blocks_for(n / N, threads * hash_at_once)));
        hash_kernel<N><<<blocks, threads, 0, on>>>(n / N, data<const T>(x), out);
        ANANKE_CUDA_LAUNCHED("hash");
      });
    });
  }
  complement_kernel<<<1, 1, 0, on>>>(out);
  ANANKE_CUDA_LAUNCHED("hash");
}

}  // namespace ananke::cuda
