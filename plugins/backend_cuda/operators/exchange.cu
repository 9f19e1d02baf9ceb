// Exchange at the source: which copies there are, and tokens to and from the wire. The other end: exchange_expand.cu.
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/exchange.h"
#include "plugins/backend_cuda/operators/exchange_parts.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "runtime/operators/arguments.h"

namespace ananke::cuda {
namespace {

using PlanSizes = arguments::ExchangePlanSizes;
using TokenSizes = arguments::ExchangeTokenSizes;

constexpr int plan_threads = 256;

// A thread per token: 0 in its row of copies for each rank that it needs, else -1.
__global__ void mark_kernel(PlanSizes n, std::int64_t experts, const std::int32_t* indices, std::int32_t* copies,
                            FaultSink faults) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * plan_threads + threadIdx.x;
  if (t >= n.tokens) return;
  const std::int32_t* chosen = indices + t * n.k;
  std::int32_t* own = copies + t * n.ranks;
  for (std::int64_t p = 0; p < n.ranks; ++p) own[p] = -1;
  for (std::int64_t j = 0; j < n.k; ++j) {
    const std::int64_t expert = chosen[j];
    if (expert < 0 || expert >= experts) {
      report(faults, Fault::planned_expert, expert, experts, j, t);
      continue;
    }
    for (std::int64_t i = 0; i < j; ++i) {
      if (chosen[i] == expert) report(faults, Fault::planned_expert_twice, t, expert);
    }
    own[expert * n.ranks / experts] = 0;
  }
}

struct ChunkPlace {
  std::int64_t begin, end;  // tokens
  __device__ ChunkPlace(const PlanSizes& n, std::int64_t chunk, std::int64_t chunk_tokens)
      : begin(min(chunk * chunk_tokens, n.tokens)), end(min(begin + chunk_tokens, n.tokens)) {}
};

// A block per chunk and rank: how many copies there are.
__global__ void count_kernel(PlanSizes n, std::int64_t chunk_tokens, const std::int32_t* copies, std::int32_t* counts) {
  __shared__ int scratch[32];
  const std::int64_t chunk = blockIdx.x, rank = blockIdx.y;
  const ChunkPlace place(n, chunk, chunk_tokens);
  int count = 0;
  for (std::int64_t t = place.begin + threadIdx.x; t < place.end; t += plan_threads) {
    count += copies[t * n.ranks + rank] == 0;
  }
  count = block_sum(count, scratch);
  if (threadIdx.x == 0) counts[rank * n.chunks + chunk] = count;
}

// A block per chunk and rank: places of its copies, behind those for the ranks before, in the order of tokens.
__global__ void place_kernel(PlanSizes n, std::int64_t chunk_tokens, const std::int32_t* counts, std::int32_t* copies) {
  __shared__ int per_warp[plan_threads / 32];
  const std::int64_t chunk = blockIdx.x, rank = blockIdx.y;
  const ChunkPlace place(n, chunk, chunk_tokens);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int next = 0;
  for (std::int64_t p = 0; p < rank; ++p) next += counts[p * n.chunks + chunk];
  for (std::int64_t begin = place.begin; begin < place.end; begin += plan_threads) {
    const std::int64_t t = begin + threadIdx.x;
    std::int32_t* copy = copies + t * n.ranks + rank;
    const bool here = t < place.end && *copy == 0;
    const unsigned lanes = __ballot_sync(all_lanes, here);
    __syncthreads();  // who still reads `per_warp`
    if (lane == 0) per_warp[warp] = __popc(lanes);
    __syncthreads();
    int before = next;
    for (int w = 0; w < plan_threads / 32; ++w) {
      if (w < warp) before += per_warp[w];
      next += per_warp[w];
    }
    if (here) *copy = before + __popc(lanes & ((1u << lane) - 1));
  }
}

__device__ bool has_place(std::int64_t at, const WireRows& wire, const FaultSink& faults) {
  if (at < wire.rows) return true;
  if (threadIdx.x == 0) report(faults, Fault::copy_place, at, wire.rows);
  return false;
}

struct Routing {
  std::int64_t k;
  const float* weights;
  const std::int32_t* indices;
};

// A block per token.
template <int N, class V, class T>
__global__ void pack_kernel(TokenSizes n, bool routed, Routing routing, const T* x, const std::int32_t* copies,
                            WireRows wire, FaultSink faults) {
  const std::int64_t t = blockIdx.x;
  for (std::int64_t p = 0; p < n.ranks; ++p) {
    const std::int64_t at = copies[t * n.ranks + p];
    if (at < 0 || !has_place(at, wire, faults)) continue;
    V* out = wire.values<V>(at);
    for (std::int64_t i = threadIdx.x; i < n.hidden / N; i += blockDim.x) {
      float values[N];
      read(x + t * n.hidden + i * N, values);
      write(out + i * N, values);
    }
    for (std::int64_t j = threadIdx.x; routed && j < routing.k; j += blockDim.x) {
      wire.floats(at)[j] = routing.weights[t * routing.k + j];
      wire.indices(at)[j] = routing.indices[t * routing.k + j];
    }
  }
}

// A block per token: sums in the order of the ranks.
template <int N, class V, class T>
__global__ void collect_kernel(TokenSizes n, bool weighted, std::int64_t k, std::int64_t experts,
                               const std::int32_t* indices, WireRows wire, const std::int32_t* copies, T* y,
                               float* dweights, FaultSink faults) {
  const std::int64_t t = blockIdx.x;
  const std::int32_t* own = copies + t * n.ranks;
  for (std::int64_t p = 0; p < n.ranks; ++p) has_place(own[p], wire, faults);
  for (std::int64_t i = threadIdx.x; i < n.hidden / N; i += blockDim.x) {
    float sum[N] = {};
    for (std::int64_t p = 0; p < n.ranks; ++p) {
      if (own[p] < 0 || own[p] >= wire.rows) continue;
      float values[N];
      read(wire.values<const V>(own[p]) + i * N, values);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += values[j];
    }
    write(y + t * n.hidden + i * N, sum);
  }
  for (std::int64_t j = threadIdx.x; weighted && j < k; j += blockDim.x) {
    const std::int64_t expert = indices[t * k + j], rank = expert * n.ranks / experts;
    const std::int64_t at = rank >= 0 && rank < n.ranks ? own[rank] : -1;
    if (at >= 0 && at < wire.rows) dweights[t * k + j] = wire.floats(at)[j];
  }
}

}  // namespace

void CudaExchange::plan(Stream& stream, const Plan& a) {
  constexpr const char* op = "exchange plan";
  const PlanSizes n = arguments::check(a);
  const cudaStream_t on = raw(stream);
  auto* copies = data<std::int32_t>(a.copies);
  auto* counts = data<std::int32_t>(a.counts);
  if (n.tokens > 0) {
    mark_kernel<<<static_cast<unsigned>(blocks_for(n.tokens, plan_threads)), plan_threads, 0, on>>>(
        n, a.experts, data<const std::int32_t>(a.indices), copies, faults_.sink());
    ANANKE_CUDA_LAUNCHED(op);
  }
  const dim3 grid(static_cast<unsigned>(n.chunks), static_cast<unsigned>(n.ranks));
  count_kernel<<<grid, plan_threads, 0, on>>>(n, a.chunk_tokens, copies, counts);
  ANANKE_CUDA_LAUNCHED(op);
  place_kernel<<<grid, plan_threads, 0, on>>>(n, a.chunk_tokens, counts, copies);
  ANANKE_CUDA_LAUNCHED(op);
}

void CudaExchange::pack(Stream& stream, const Pack& a) {
  const DType elements = elements_of(a.x);
  const TokenSizes n = arguments::check(a, elements);
  if (n.tokens == 0) return;
  const bool routed = a.row.extras == WireRow::Extras::routing;
  const Routing routing{a.row.k, data<const float>(a.weights), data<const std::int32_t>(a.indices)};
  with_wire(elements, a.row, {a.x.data}, [&](auto element, auto value, auto width) {
    using T = decltype(element);
    using V = decltype(value);
    constexpr int N = decltype(width)::value;
    pack_kernel<N, V><<<static_cast<unsigned>(n.tokens), exchange_threads(n.hidden), 0, raw(stream)>>>(
        n, routed, routing, data<const T>(a.x), data<const std::int32_t>(a.copies), WireRows(a.wire, a.row),
        faults_.sink());
    ANANKE_CUDA_LAUNCHED("exchange pack");
  });
}

void CudaExchange::collect(Stream& stream, const Collect& a) {
  const DType elements = elements_of(a.y);
  const TokenSizes n = arguments::check(a, elements);
  if (n.tokens == 0) return;
  const bool weighted = a.row.extras == WireRow::Extras::dweights;
  with_wire(elements, a.row, {a.y.data}, [&](auto element, auto value, auto width) {
    using T = decltype(element);
    using V = decltype(value);
    constexpr int N = decltype(width)::value;
    collect_kernel<N, V><<<static_cast<unsigned>(n.tokens), exchange_threads(n.hidden), 0, raw(stream)>>>(
        n, weighted, a.row.k, a.experts, data<const std::int32_t>(a.indices), WireRows(a.wire, a.row),
        data<const std::int32_t>(a.copies), data<T>(a.y), data<float>(a.dweights), faults_.sink());
    ANANKE_CUDA_LAUNCHED("exchange collect");
  });
}

}  // namespace ananke::cuda
