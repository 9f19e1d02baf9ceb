#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/embedding.h"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/floats.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "runtime/operators/arguments.h"

namespace ananke::cuda {
namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr int under_way = 8;  // packs that a lane loads before it stores them
// Of the backward pass: token % buckets, which no pattern of common tokens fills. Blocks for M5's and W2's columns are
// whole waves of three on each of 132 SMs.
constexpr unsigned buckets = 197;
constexpr int at_once = 8;       // tokens that a thread looks at between two barriers
constexpr int listed = 3072;     // occurrences in a bucket that are summed at a time, at most
constexpr int lane_packs = 2;    // columns of a lane
constexpr int rows_at_once = 2;  // that a warp loads before it adds them

// A warp per token.
template <int N, class T>
__global__ void forward_kernel(std::int64_t count, std::int64_t vocabulary, std::int64_t packs, const int* tokens,
                               const T* table, T* y, FaultSink faults) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  if (t >= count) return;
  const int lane = threadIdx.x % 32;
  const std::int64_t token = tokens[t];
  if (token < 0 || token >= vocabulary) {
    if (lane == 0) report(faults, Fault::embedding_token, token, t, vocabulary);
    return;
  }
  for (std::int64_t begin = lane; begin < packs; begin += 32 * under_way) {
    Pack<T, N> values[under_way];
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      if (begin + u * 32 < packs) values[u] = load<N>(table + (token * packs + begin + u * 32) * N);
    }
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      if (begin + u * 32 < packs) store(y + (t * packs + begin + u * 32) * N, values[u]);
    }
  }
}

struct Occurrence {
  int token, place;
};

// Appends to `list` the occurrences in [begin, begin + threads * at_once) of this block's tokens, in their order, and
// gives the new length.
__device__ int append(const int* tokens, std::int64_t count, std::int64_t begin, std::int64_t vocabulary, int length,
                      Occurrence* list, int (&counts)[at_once][warps], const FaultSink& faults) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int token[at_once];
  unsigned lanes[at_once];
#pragma unroll
  for (int u = 0; u < at_once; ++u) {
    const std::int64_t at = begin + u * threads + threadIdx.x;
    token[u] = at < count ? tokens[at] : 0;
  }
  __syncthreads();  // who still reads `counts`
#pragma unroll
  for (int u = 0; u < at_once; ++u) {
    const std::int64_t at = begin + u * threads + threadIdx.x;
    const bool exists = token[u] >= 0 && token[u] < vocabulary;
    if (at < count && !exists && blockIdx.x == 0 && blockIdx.y == 0) {
      report(faults, Fault::embedding_token, token[u], at, vocabulary);
    }
    const bool own = at < count && exists && static_cast<unsigned>(token[u]) % buckets == blockIdx.x;
    lanes[u] = __ballot_sync(0xffffffffu, own);
    if (lane == 0) counts[u][warp] = __popc(lanes[u]);
  }
  __syncthreads();
  // Lane l of every warp scans counts 2 l and 2 l + 1, in the order of tokens.
  static_assert(at_once * warps == 64 && warps % 2 == 0);
  const int* pair = &counts[0][0] + 2 * lane;
  const int here = pair[0] + pair[1];
  int sum = here;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(all_lanes, sum, step);
    if (lane >= step) sum += other;
  }
  const int before_own = length + sum - here + (warp % 2 == 0 ? 0 : pair[0]);  // of the one that is as odd as the warp
#pragma unroll
  for (int u = 0; u < at_once; ++u) {
    const int before = __shfl_sync(all_lanes, before_own, (u * warps + warp) / 2);
    if ((lanes[u] >> lane & 1) == 0) continue;
    const std::int64_t at = begin + u * threads + threadIdx.x;
    list[before + __popc(lanes[u] & ((1u << lane) - 1))] = {token[u], static_cast<int>(at)};
  }
  length += __shfl_sync(all_lanes, sum, 31);
  return length;
}

// The columns of one lane, `lane_packs` packs of N that lie 32 packs apart.
template <int N>
struct Columns {
  std::int64_t first, hidden;  // of the first pack
  Pack<float, N> sums[lane_packs];

  __device__ bool exist(int u) const { return first + u * 32 * N < hidden; }
  __device__ void read(const float* row) {
#pragma unroll
    for (int u = 0; u < lane_packs; ++u) {
      if (exist(u)) sums[u] = load_floats<N>(row + first + u * 32 * N);
    }
  }
  __device__ void write(float* row) const {
#pragma unroll
    for (int u = 0; u < lane_packs; ++u) {
      if (exist(u)) store_floats<N>(row + first + u * 32 * N, sums[u]);
    }
  }
  // Rows of dy at `places`; those below 0 are none.
  template <class T>
  __device__ void add(const T* dy, const int (&places)[rows_at_once]) {
    Pack<T, N> terms[rows_at_once][lane_packs];
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
#pragma unroll
      for (int u = 0; u < lane_packs; ++u) {
        if (places[i] >= 0 && exist(u)) terms[i][u] = load<N>(dy + places[i] * hidden + first + u * 32 * N);
      }
    }
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
#pragma unroll
      for (int u = 0; u < lane_packs; ++u) {
        if (places[i] < 0 || !exist(u)) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) sums[u].at[j] += to_float(terms[i][u].at[j]);
      }
    }
  }
};

// dtable[token] += rows of dy of its occurrences in the list, in their order: by the warp that has the first of them.
template <int N, class T>
__device__ void add_listed(std::int64_t hidden, const T* dy, const Occurrence* list, int length, float* dtable) {
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < length; i += warps) {
    const int token = list[i].token;
    bool seen = false;
    for (int j = lane; j < i && !seen; j += 32) seen = list[j].token == token;
    if (__any_sync(0xffffffffu, seen)) continue;
    Columns<N> columns{(static_cast<std::int64_t>(blockIdx.y) * 32 * lane_packs + lane) * N, hidden, {}};
    float* row = dtable + token * hidden;
    columns.read(row);
    for (int begin = i; begin < length; begin += 32) {
      const int j = begin + lane;
      unsigned lanes = __ballot_sync(0xffffffffu, j < length && list[j].token == token);
      while (lanes != 0) {
        int places[rows_at_once];
#pragma unroll
        for (int& place : places) {
          place = lanes != 0 ? list[begin + __ffs(static_cast<int>(lanes)) - 1].place : -1;
          lanes &= lanes - 1;
        }
        columns.add(dy, places);
      }
    }
    columns.write(row);
  }
}

// Block (b, p): tokens of bucket b, columns of piece p.
template <int N, class T>
__global__ void __launch_bounds__(threads)
    backward_kernel(std::int64_t count, std::int64_t vocabulary, std::int64_t hidden, const int* tokens, const T* dy,
                    float* dtable, FaultSink faults) {
  __shared__ Occurrence list[listed];
  __shared__ int counts[at_once][warps];
  constexpr int step = threads * at_once;
  int length = 0;
  for (std::int64_t begin = 0; begin < count; begin += step) {
    length = append(tokens, count, begin, vocabulary, length, list, counts, faults);
    if (length + step <= listed && begin + step < count) continue;
    __syncthreads();  // the list is written
    add_listed<N>(hidden, dy, list, length, dtable);
    __syncthreads();  // the list is read, and rows that the next one adds to are written
    length = 0;
  }
}

}  // namespace

void CudaEmbedding::forward(Stream& stream, const Forward& a) {
  const DType elements = elements_of(a.y);
  const auto [tokens, vocabulary, hidden] = arguments::check(a, elements);
  if (tokens == 0 || hidden == 0) return;
  const auto blocks = static_cast<unsigned>(blocks_for(tokens, warps));
  with_elements(elements, [&, tokens = tokens, vocabulary = vocabulary, hidden = hidden](auto element) {
    using T = decltype(element);
    with_packs<T>(hidden, {a.table.data, a.y.data}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      forward_kernel<N><<<blocks, threads, 0, raw(stream)>>>(tokens, vocabulary, hidden / N, data<int>(a.tokens),
                                                             data<const T>(a.table), data<T>(a.y), faults_.sink());
      ANANKE_CUDA_LAUNCHED("embedding forward");
    });
  });
}

// The contract gives no workspace to sort in: each block looks through all tokens for those of its own.
void CudaEmbedding::backward(Stream& stream, const Backward& a) {
  const DType elements = elements_of(a.dy);
  const auto [tokens, vocabulary, hidden] = arguments::check(a, elements);
  if (tokens == 0 || hidden == 0) return;
  with_elements(elements, [&, tokens = tokens, vocabulary = vocabulary, hidden = hidden](auto element) {
    using T = decltype(element);
    with_packs<T>(hidden, {a.dy.data, a.dtable.data}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      const dim3 grid(buckets, static_cast<unsigned>(blocks_for(hidden, 32 * lane_packs * N)));
      backward_kernel<N><<<grid, threads, 0, raw(stream)>>>(tokens, vocabulary, hidden, data<int>(a.tokens),
                                                            data<const T>(a.dy), data<float>(a.dtable), faults_.sink());
      ANANKE_CUDA_LAUNCHED("embedding backward");
    });
  });
}

}  // namespace ananke::cuda
