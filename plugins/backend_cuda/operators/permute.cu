#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/expert_sort.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/permute.h"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

using Sizes = arguments::PermuteSizes;

constexpr int threads = 256, warps = threads / 32;
constexpr int slots_per_warp = 128, slots_per_block = warps * slots_per_warp;

std::int64_t sort_blocks(std::int64_t slots) { return blocks_for(slots, slots_per_block); }

// counts[block, e]: slots of the block that choose expert e.
__global__ void count_kernel(std::int64_t slots, int experts, const std::int32_t* indices, std::int32_t* counts,
                             FaultSink faults) {
  extern __shared__ int here[];
  for (int e = threadIdx.x; e < experts; e += threads) here[e] = 0;
  __syncthreads();
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * slots_per_block;
  const std::int64_t end = min(begin + slots_per_block, slots);
  for (std::int64_t slot = begin + threadIdx.x; slot < end; slot += threads) {
    const int expert = indices[slot];
    if (expert < 0 || expert >= experts) {
      report(faults, Fault::permuted_expert, expert, experts, slot);
    } else {
      atomicAdd(&here[expert], 1);
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += threads) {
    counts[static_cast<std::int64_t>(blockIdx.x) * experts + e] = here[e];
  }
}

// Ranks of slots: those of one expert keep their order. A warp has slots_per_warp slots in a row and counts its own
// first; then it takes them 32 at a time.
__global__ void rank_kernel(std::int64_t slots, int experts, const std::int32_t* indices, const std::int32_t* before,
                            const std::int32_t* offsets, std::int32_t* row_of_slot) {
  extern __shared__ int next[];  // [warps, experts]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int* own = next + warp * experts;
  for (int i = threadIdx.x; i < warps * experts; i += threads) next[i] = 0;
  __syncthreads();
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * slots_per_block + warp * slots_per_warp;
  const auto expert_of = [&](std::int64_t slot) {
    const int expert = slot < slots ? indices[slot] : -1;
    return expert < experts ? expert : -1;
  };
  for (int round = 0; round < slots_per_warp; round += 32) {
    const int expert = expert_of(begin + round + lane);
    if (expert >= 0) atomicAdd(&own[expert], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += threads) {
    int at = offsets[e] + before[static_cast<std::int64_t>(blockIdx.x) * experts + e];
    for (int w = 0; w < warps; ++w) {
      const int count = next[w * experts + e];
      next[w * experts + e] = at;
      at += count;
    }
  }
  __syncthreads();
  for (int round = 0; round < slots_per_warp; round += 32) {
    const std::int64_t slot = begin + round + lane;
    const int expert = expert_of(slot);
    const unsigned same = __match_any_sync(all_lanes, expert);
    const int rank = __popc(same & ((1u << lane) - 1));
    const int at = expert >= 0 ? own[expert] : 0;
    __syncwarp();
    if (expert >= 0) {
      row_of_slot[slot] = at + rank;
      if (rank == 0) own[expert] = at + __popc(same);
    }
    __syncwarp();
  }
}

// A place that a wrong expert left out: what is there is not a row.
__device__ bool valid_row(std::int64_t row, std::int64_t slots) { return row >= 0 && row < slots; }

constexpr int under_way = 4;  // packs that a lane loads before it stores them

// A warp per token: its row is read once and written k times. `indices`, where there are some, say which slots have a
// row; `weights`, where there are some, go to row_weights.
template <int N, class T>
__global__ void scatter_kernel(std::int64_t slots, std::int64_t k, std::int64_t packs, int experts,
                               const std::int32_t* indices, const std::int32_t* row_of_slot, const float* weights,
                               const T* x, T* rows, float* row_weights) {
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
        if (begin + u * 32 < packs) store(rows + (row * packs + begin + u * 32) * N, values[u]);
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
  carve.take<std::int32_t>(sort_blocks(slots) * experts);
  return carve.used();
}

void CudaPermute::forward(Stream& stream, const Forward& a, Region workspace_) {
  constexpr const char* op = "permute forward";
  const DType elements = elements_of(a.x);
  const Sizes n = arguments::check(a, elements);
  expect_region(op, "workspace", workspace_, workspace(n.slots(), a.experts));
  const std::size_t shared = static_cast<std::size_t>(a.experts) * warps * sizeof(int);
  ANANKE_CHECK(shared <= facts_.shared_per_block_most, "{}: {} experts, but the CUDA backend takes at most {}", op,
               a.experts, facts_.shared_per_block_most / (warps * sizeof(int)));
  const cudaStream_t on = raw(stream);
  const auto blocks = static_cast<unsigned>(sort_blocks(n.slots()));
  const auto experts = static_cast<int>(a.experts);
  std::int32_t* counts = Carve(workspace_).take<std::int32_t>(sort_blocks(n.slots()) * a.experts);
  if (n.slots() > 0) {
    count_kernel<<<blocks, threads, static_cast<std::size_t>(experts) * sizeof(int), on>>>(
        n.slots(), experts, data<const std::int32_t>(a.indices), counts, faults_.sink());
    ANANKE_CUDA_LAUNCHED(op);
  }
  scan_counts(on, blocks, experts, counts, data<std::int32_t>(a.offsets));
  if (n.slots() == 0) return;
  allow_shared(rank_kernel, shared);
  rank_kernel<<<blocks, threads, shared, on>>>(n.slots(), experts, data<const std::int32_t>(a.indices), counts,
                                               data<const std::int32_t>(a.offsets), data<std::int32_t>(a.row_of_slot));
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
