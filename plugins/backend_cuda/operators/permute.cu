#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/permute.h"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "plugins/backend_cuda/operators/shared_memory.cuh"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

using Sizes = arguments::PermuteSizes;

constexpr int threads = 256, warps = threads / 32;
constexpr int sort_threads = 512, sort_warps = sort_threads / 32;
constexpr std::int64_t most_sort_blocks = 128;  // each reads the counts of all
constexpr int at_once = 4;                      // slots that a thread loads before it looks at them

// How slots are shared out to be sorted: by their number alone. Each warp has `per_warp` slots in a row, whole rounds
// of 32.
struct SortShape {
  std::int64_t per_warp, blocks;
  explicit SortShape(std::int64_t slots)
      : per_warp(std::max<std::int64_t>(1, blocks_for(slots, most_sort_blocks * sort_threads)) * 32),
        blocks(blocks_for(slots, per_warp * sort_warps)) {}
  __host__ __device__ std::int64_t per_block() const { return per_warp * sort_warps; }
};

// counts[block, e]: slots of the block that choose expert e.
__global__ void __launch_bounds__(sort_threads)
    count_kernel(std::int64_t slots, SortShape shape, int experts, const std::int32_t* indices, std::int32_t* counts,
                 FaultSink faults) {
  extern __shared__ int here[];
  for (int e = threadIdx.x; e < experts; e += sort_threads) here[e] = 0;
  __syncthreads();
  const std::int64_t begin = blockIdx.x * shape.per_block(), end = min(begin + shape.per_block(), slots);
  for (std::int64_t first = begin + threadIdx.x; first < end; first += at_once * sort_threads) {
    int expert[at_once];
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      const std::int64_t slot = first + u * sort_threads;
      expert[u] = slot < end ? indices[slot] : 0;
    }
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      const std::int64_t slot = first + u * sort_threads;
      if (slot >= end) continue;
      if (expert[u] < 0 || expert[u] >= experts) {
        report(faults, Fault::permuted_expert, expert[u], experts, slot);
      } else {
        atomicAdd(&here[expert[u]], 1);
      }
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += sort_threads) {
    counts[static_cast<std::int64_t>(blockIdx.x) * experts + e] = here[e];
  }
}

// before[e] and total[e], shared: slots of expert e in the blocks before this one, and in all.
__device__ void sum_counts(int experts, const std::int32_t* counts, int* before, int* total) {
  for (int e = threadIdx.x; e < experts; e += sort_threads) before[e] = total[e] = 0;
  __syncthreads();
  const int across = max(1, min(experts, sort_threads)), groups = sort_threads / across;
  const int group = static_cast<int>(threadIdx.x) / across;
  for (int e = static_cast<int>(threadIdx.x) % across; group < groups && e < experts; e += across) {
    int earlier = 0, sum = 0;
#pragma unroll 8
    for (int block = group; block < gridDim.x; block += groups) {
      const int count = counts[static_cast<std::int64_t>(block) * experts + e];
      if (block < blockIdx.x) earlier += count;
      sum += count;
    }
    atomicAdd(&before[e], earlier);
    atomicAdd(&total[e], sum);
  }
  __syncthreads();
}

// By the first warp: total[e] becomes the sum over the experts before, which block 0 writes, and that of all behind it.
__device__ void scan_experts(int experts, int* total, std::int32_t* offsets) {
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x;
  int before = 0;
  for (int begin = 0; begin < experts; begin += 32) {
    const int e = begin + lane, count = e < experts ? total[e] : 0;
    int sum = count;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(all_lanes, sum, step);
      if (lane >= step) sum += other;
    }
    if (e < experts) {
      total[e] = before + sum - count;
      if (blockIdx.x == 0) offsets[e] = total[e];
    }
    before += __shfl_sync(all_lanes, sum, 31);
  }
  if (blockIdx.x == 0 && lane == 0) offsets[experts] = before;
}

// Experts of slots first, first + 32 and so on; -1: there is no slot, or none such.
struct OwnExperts {
  int of[at_once];
  __device__ OwnExperts(std::int64_t first, std::int64_t end, int experts, const std::int32_t* indices) {
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      const std::int64_t slot = first + u * 32;
      const int expert = slot < end ? indices[slot] : -1;
      of[u] = expert < experts ? max(expert, -1) : -1;
    }
  }
};

// offsets, and ranks of slots: those of one expert keep their order. A warp counts its own slots first; then it takes
// them 32 at a time.
__global__ void __launch_bounds__(sort_threads)
    rank_kernel(std::int64_t slots, SortShape shape, int experts, const std::int32_t* indices,
                const std::int32_t* counts, std::int32_t* offsets, std::int32_t* row_of_slot) {
  extern __shared__ int next[];  // [sort_warps, experts], then two rows of its own
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int *before = next + sort_warps * experts, *first = before + experts, *own = next + warp * experts;
  for (int i = threadIdx.x; i < sort_warps * experts; i += sort_threads) next[i] = 0;
  sum_counts(experts, counts, before, first);
  scan_experts(experts, first, offsets);
  const std::int64_t begin = blockIdx.x * shape.per_block() + warp * shape.per_warp;
  const std::int64_t end = min(begin + shape.per_warp, slots);
  for (std::int64_t round = begin; round < end; round += at_once * 32) {
    const OwnExperts own_experts(round + lane, end, experts, indices);
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      if (own_experts.of[u] >= 0) atomicAdd(&own[own_experts.of[u]], 1);
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += sort_threads) {
    int at = first[e] + before[e];
#pragma unroll
    for (int w = 0; w < sort_warps; ++w) {
      const int count = next[w * experts + e];
      next[w * experts + e] = at;
      at += count;
    }
  }
  __syncthreads();
  for (std::int64_t round = begin; round < end; round += at_once * 32) {
    const OwnExperts own_experts(round + lane, end, experts, indices);
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      const int expert = own_experts.of[u];
      const unsigned same = __match_any_sync(all_lanes, expert);
      const int rank = __popc(same & ((1u << lane) - 1));
      const int at = expert >= 0 ? own[expert] : 0;
      __syncwarp();
      if (expert >= 0) {
        row_of_slot[round + u * 32 + lane] = at + rank;
        if (rank == 0) own[expert] = at + __popc(same);
      }
      __syncwarp();
    }
  }
}

// Of a block that ranks.
std::size_t rank_bytes(std::int64_t experts) {
  return static_cast<std::size_t>(experts * (sort_warps + 2)) * sizeof(int);
}

// A place that a wrong expert left out: what is there is not a row.
__device__ bool valid_row(std::int64_t row, std::int64_t slots) { return row >= 0 && row < slots; }

constexpr int under_way = 8;  // packs that a lane loads before it stores them

// A warp per token: its row is read once and written k times. `indices`, where there are some, say which slots have a
// row; `weights`, where there are some, go to row_weights.
template <int N, class T>
__global__ void __launch_bounds__(threads, 4)
    scatter_kernel(std::int64_t slots, std::int64_t k, std::int64_t packs, int experts, const std::int32_t* indices,
                   const std::int32_t* row_of_slot, const float* weights, const T* x, T* rows, float* row_weights) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  if (t * k >= slots) return;
  for (std::int64_t slot = t * k + threadIdx.x % 32; weights && slot < (t + 1) * k; slot += 32) {
    const std::int64_t row = row_of_slot[slot];
    if (valid_row(row, slots)) row_weights[row] = weights[slot];
  }
  for (std::int64_t begin = threadIdx.x % 32; begin < packs; begin += 32 * under_way) {
    Pack<T, N> values[under_way];
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      if (begin + u * 32 < packs) values[u] = load<N>(x + (t * packs + begin + u * 32) * N);
    }
    for (std::int64_t slot = t * k; slot < (t + 1) * k; ++slot) {
      const std::int64_t row = row_of_slot[slot];
      const int expert = indices ? indices[slot] : 0;
      if (expert < 0 || expert >= experts || !valid_row(row, slots)) continue;
#pragma unroll
      for (int u = 0; u < under_way; ++u) {
        if (begin + u * 32 < packs) store_passing(rows + (row * packs + begin + u * 32) * N, values[u]);
      }
    }
  }
}

// A block per token: out[t] = sum over j of weights[t, j] rows[row_of_slot[t, j]], in the order of j; weights null: 1.
// by_slot[t, j] = by_row[row_of_slot[t, j]], where there are any.
template <int N, class T>
__global__ void gather_kernel(std::int64_t slots, std::int64_t k, std::int64_t packs, const std::int32_t* row_of_slot,
                              const float* weights, const T* rows, const float* by_row, T* out, float* by_slot) {
  const std::int64_t t = blockIdx.x;
  for (std::int64_t slot = t * k + threadIdx.x; by_slot && slot < (t + 1) * k; slot += blockDim.x) {
    const std::int64_t row = row_of_slot[slot];
    by_slot[slot] = valid_row(row, slots) ? by_row[row] : 0.0f;
  }
  for (std::int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    float sum[N] = {};
    for (std::int64_t slot = t * k; slot < (t + 1) * k; ++slot) {
      const std::int64_t row = row_of_slot[slot];
      if (!valid_row(row, slots)) continue;
      const float weight = weights ? weights[slot] : 1.0f;
      const Pack<T, N> values = load<N>(rows + (row * packs + i) * N);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += weight * to_float(values.at[j]);
    }
    Pack<T, N> values;
#pragma unroll
    for (int j = 0; j < N; ++j) values.at[j] = from_float<T>(sum[j]);
    store(out + (t * packs + i) * N, values);
  }
}

int threads_for(std::int64_t packs) {
  return static_cast<int>(std::clamp<std::int64_t>((packs + 31) / 32 * 32, 32, threads));
}

}  // namespace

std::size_t CudaPermute::workspace(std::int64_t slots, std::int64_t experts) const {
  Carve carve;
  carve.take<std::int32_t>(SortShape(slots).blocks * experts);
  return carve.used();
}

void CudaPermute::forward(Stream& stream, const Forward& a, Region workspace_) {
  constexpr const char* op = "permute forward";
  const DType elements = elements_of(a.x);
  const Sizes n = arguments::check(a, elements);
  expect_region(op, "workspace", workspace_, workspace(n.slots(), a.experts));
  const std::size_t shared = rank_bytes(a.experts);
  ANANKE_CHECK(shared <= facts_.shared_per_block_most, "{}: {} experts, but the CUDA backend takes at most {}", op,
               a.experts, facts_.shared_per_block_most / rank_bytes(1));
  const cudaStream_t on = raw(stream);
  const auto experts = static_cast<int>(a.experts);
  if (n.slots() == 0) {
    check(cudaMemsetAsync(a.offsets.data, 0, a.offsets.bytes(), on), "clear offsets");
    return;
  }
  const SortShape shape(n.slots());
  const auto blocks = static_cast<unsigned>(shape.blocks);
  std::int32_t* counts = Carve(workspace_).take<std::int32_t>(shape.blocks * a.experts);
  count_kernel<<<blocks, sort_threads, static_cast<std::size_t>(experts) * sizeof(int), on>>>(
      n.slots(), shape, experts, data<const std::int32_t>(a.indices), counts, faults_.sink());
  ANANKE_CUDA_LAUNCHED(op);
  allow_shared(rank_kernel, shared);
  rank_kernel<<<blocks, sort_threads, shared, on>>>(n.slots(), shape, experts, data<const std::int32_t>(a.indices),
                                                    counts, data<std::int32_t>(a.offsets),
                                                    data<std::int32_t>(a.row_of_slot));
  ANANKE_CUDA_LAUNCHED(op);
  if (n.hidden == 0) return;
  with_elements(elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(n.hidden, {a.x.data, a.rows.data}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      const std::int64_t packs = n.hidden / N;
      scatter_kernel<N><<<static_cast<unsigned>(blocks_for(n.tokens, warps)), threads, 0, on>>>(
          n.slots(), n.k, packs, experts, data<const std::int32_t>(a.indices), data<const std::int32_t>(a.row_of_slot),
          nullptr, data<const T>(a.x), data<T>(a.rows), nullptr);
      ANANKE_CUDA_LAUNCHED(op);
    });
  });
}

namespace {

void gather(const char* op, cudaStream_t on, const Sizes& n, DType elements, const TensorView& rows,
            const TensorView& row_of_slot, const float* weights, const TensorView& out, const float* by_row,
            float* by_slot) {
  if (n.tokens == 0) return;
  with_elements(elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(n.hidden, {rows.data, out.data}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      const std::int64_t packs = n.hidden / N;
      gather_kernel<N><<<static_cast<unsigned>(n.tokens), threads_for(packs), 0, on>>>(
          n.slots(), n.k, packs, data<const std::int32_t>(row_of_slot), weights, data<const T>(rows), by_row,
          data<T>(out), by_slot);
      ANANKE_CUDA_LAUNCHED(op);
    });
  });
}

}  // namespace

void CudaPermute::backward(Stream& stream, const Backward& a) {
  const DType elements = elements_of(a.dx);
  const Sizes n = arguments::check(a, elements);
  gather("permute backward", raw(stream), n, elements, a.drows, a.row_of_slot, nullptr, a.dx,
         data<const float>(a.d_row_weights), data<float>(a.dweights));
}

void CudaPermute::combine_forward(Stream& stream, const CombineForward& a) {
  const DType elements = elements_of(a.y);
  const Sizes n = arguments::check(a, elements);
  gather("combine forward", raw(stream), n, elements, a.rows, a.row_of_slot, data<const float>(a.weights), a.y, nullptr,
         nullptr);
}

void CudaPermute::combine_backward(Stream& stream, const CombineBackward& a) {
  const DType elements = elements_of(a.dy);
  const Sizes n = arguments::check(a, elements);
  if (n.slots() == 0) return;
  with_elements(elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(n.hidden, {a.dy.data, a.d_weighted.data}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      const std::int64_t packs = n.hidden / N;
      scatter_kernel<N><<<static_cast<unsigned>(blocks_for(n.tokens, warps)), threads, 0, raw(stream)>>>(
          n.slots(), n.k, packs, 1, nullptr, data<const std::int32_t>(a.row_of_slot), data<const float>(a.weights),
          data<const T>(a.dy), data<T>(a.d_weighted), data<float>(a.row_weights));
      ANANKE_CUDA_LAUNCHED("combine backward");
    });
  });
}

}  // namespace ananke::cuda
