// What surrounds the tiles of attention: where they are, norms and rotation of queries and keys and their gradients.
#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/operators/attention_parts.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/partial_sums.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"

namespace ananke::cuda {

AttentionSaved layout_saved(Carve& carve, const Attention::Sizes& s) {
  AttentionSaved saved{};
  saved.inverse_q = carve.take<float>(s.tokens * s.query_heads);
  saved.inverse_k = carve.take<float>(s.tokens * s.key_heads);
  saved.log_sum = carve.take<float>(s.tokens * s.query_heads);
  return saved;
}

AttentionScratch layout_scratch(Carve& carve, const Attention::Sizes& s, DType elements) {
  const auto size = static_cast<std::int64_t>(size_of(elements));
  AttentionScratch scratch{};
  scratch.q = carve.take<std::byte>(s.tokens * s.query_heads * s.head_dim * size);
  scratch.k = carve.take<std::byte>(s.tokens * s.key_heads * s.head_dim * size);
  scratch.first_tile = carve.take<std::int32_t>(s.segments + 1);
  scratch.delta = carve.take<float>(s.tokens * s.query_heads);
  scratch.norm_parts = carve.take<float>(blocks_for(s.tokens, tokens_per_part) * 2 * s.head_dim);
  return scratch;
}

namespace {

constexpr int threads = 256, warps = threads / 32, scan_threads = 1024;
constexpr int most_pairs = most_head_dim / 2 / 32;  // of a lane

// One block: a running sum of the segments' tiles, and the checks of the offsets, which the call could not see.
__global__ void __launch_bounds__(scan_threads)
    tiles_kernel(std::int64_t tokens, std::int64_t segments, std::int64_t longest, int tile,
                 const std::int32_t* offsets, std::int32_t* first_tile, FaultSink faults) {
  __shared__ int per_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  bool bad = false;
  if (threadIdx.x == 0 && (offsets[0] != 0 || offsets[segments] != tokens)) {
    report(faults, Fault::segment_ends, offsets[0], offsets[segments], tokens);
    bad = true;
  }
  __syncthreads();  // that is told first
  int before = 0;
  for (std::int64_t begin = 0; begin < segments; begin += blockDim.x) {
    const std::int64_t s = begin + threadIdx.x;
    const std::int64_t length = s < segments ? static_cast<std::int64_t>(offsets[s + 1]) - offsets[s] : 0;
    if (s < segments && (length < 1 || length > longest)) {
      report(faults, Fault::segment_length, s, offsets[s], offsets[s + 1], longest);
      bad = true;
    }
    int sum = s < segments ? static_cast<int>((length + tile - 1) / tile) : 0;
    const int own = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(all_lanes, sum, step);
      if (lane >= step) sum += other;
    }
    __syncthreads();
    if (lane == 31) per_warp[warp] = sum;
    __syncthreads();
    int total = before;
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
      if (w < warp) sum += per_warp[w];
      total += per_warp[w];
    }
    if (s < segments) first_tile[s] = before + sum - own;
    before = total;
  }
  const bool any = __syncthreads_or(bad);
  if (threadIdx.x == 0) first_tile[segments] = any ? 0 : before;
}

struct Rotation {
  std::int64_t cached;
  const float *cosine, *sine;  // [cached, D / 2]
  const std::int32_t* positions;
};

// The rows of q, then those of k, of each token. A warp each.
template <class T>
struct Heads {
  std::int64_t query_heads, key_heads;
  int dim;
  const T *q, *k;                // as they came
  const float *q_norm, *k_norm;  // [D]
  float *inverse_q, *inverse_k;
};

template <class T>
struct HeadRow {
  std::int64_t token;
  bool is_query;
  const T* from;
  const float* weight;
  float* inverse;
  std::int64_t at;  // of the row's first element, in q or k
  __device__ HeadRow(const Heads<T>& n, std::int64_t row) {
    const std::int64_t heads = n.query_heads + n.key_heads, head = row % heads;
    token = row / heads;
    is_query = head < n.query_heads;
    const std::int64_t own = is_query ? token * n.query_heads + head : token * n.key_heads + head - n.query_heads;
    at = own * n.dim;
    from = (is_query ? n.q : n.k) + at;
    weight = is_query ? n.q_norm : n.k_norm;
    inverse = (is_query ? n.inverse_q : n.inverse_k) + own;
  }
};

template <class T>
__global__ void rotate_kernel(std::int64_t rows, Heads<T> n, Rotation rotation, double eps, bool fresh, T* q, T* k,
                              FaultSink faults) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  if (index >= rows) return;
  const int lane = threadIdx.x % 32, half = n.dim / 2;
  const HeadRow<T> row(n, index);
  const std::int64_t position = rotation.positions[row.token];
  if (position < 0 || position >= rotation.cached) {
    if (lane == 0) report(faults, Fault::position, position, row.token, rotation.cached);
    return;
  }
  if (fresh) {
    double squares = 0;
    for (int i = lane; i < n.dim; i += 32) {
      const double value = to_float(row.from[i]);
      squares += value * value;
    }
    squares = warp_sum(squares);
    if (lane == 0) *row.inverse = static_cast<float>(1 / sqrt(squares / n.dim + eps));
    __syncwarp();
  }
  const float inverse = *row.inverse;
  T* out = (row.is_query ? q : k) + row.at;
  for (int i = lane; i < half; i += 32) {
    const float cosine = rotation.cosine[position * half + i], sine = rotation.sine[position * half + i];
    const float a = to_float(row.from[i]) * inverse * row.weight[i];
    const float b = to_float(row.from[i + half]) * inverse * row.weight[i + half];
    out[i] = from_float<T>(a * cosine - b * sine);
    out[i + half] = from_float<T>(b * cosine + a * sine);
  }
}

// delta[row] = sum(o d_o). A warp per row.
template <class T>
__global__ void delta_kernel(std::int64_t rows, int dim, const T* o, const T* d_o, float* delta) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  if (row >= rows) return;
  double sum = 0;
  for (int i = threadIdx.x % 32; i < dim; i += 32) {
    sum += static_cast<double>(to_float(o[row * dim + i])) * static_cast<double>(to_float(d_o[row * dim + i]));
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) delta[row] = static_cast<float>(sum);
}

// One row's gradient, turned back and taken through the norm, in place; its part of the weight's gradient is added to
// dweight (shared memory of this warp).
template <class T>
__device__ void unrotate_row(const Heads<T>& n, const Rotation& rotation, const HeadRow<T>& row, T* gradient,
                             float* dweight) {
  const int lane = threadIdx.x % 32, half = n.dim / 2;
  const std::int64_t position = rotation.positions[row.token];
  if (position < 0 || position >= rotation.cached) return;  // told by rotate_kernel
  float a[most_pairs], b[most_pairs];
  double product = 0;
#pragma unroll
  for (int p = 0; p < most_pairs; ++p) {
    const int i = lane + 32 * p;
    if (i >= half) continue;
    const float cosine = rotation.cosine[position * half + i], sine = rotation.sine[position * half + i];
    const float first = to_float(gradient[i]), second = to_float(gradient[i + half]);
    a[p] = first * cosine + second * sine;
    b[p] = second * cosine - first * sine;
    product += static_cast<double>(row.weight[i] * a[p]) * static_cast<double>(to_float(row.from[i])) +
               static_cast<double>(row.weight[i + half] * b[p]) * static_cast<double>(to_float(row.from[i + half]));
  }
  product = warp_sum(product);
  const float inverse = *row.inverse;
  const double r = inverse;
  const auto pull = static_cast<float>(r * r * r * product / n.dim);
#pragma unroll
  for (int p = 0; p < most_pairs; ++p) {
    const int i = lane + 32 * p;
    if (i >= half) continue;
    const float first = to_float(row.from[i]), second = to_float(row.from[i + half]);
    gradient[i] = from_float<T>(inverse * row.weight[i] * a[p] - first * pull);
    gradient[i + half] = from_float<T>(inverse * row.weight[i + half] * b[p] - second * pull);
    dweight[i] += a[p] * first * inverse;
    dweight[i + half] += b[p] * second * inverse;
  }
}

// A block per tokens_per_part tokens. parts: [blocks, 2, D].
template <class T>
__global__ void unrotate_kernel(std::int64_t rows, Heads<T> n, Rotation rotation, T* dq, T* dk, float* parts) {
  extern __shared__ float sums[];  // [warps, 2, D]
  const int warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < warps * 2 * n.dim; i += threads) sums[i] = 0;
  __syncthreads();
  const std::int64_t per_block = tokens_per_part * (n.query_heads + n.key_heads);
  const std::int64_t begin = blockIdx.x * per_block, end = min(begin + per_block, rows);
  for (std::int64_t index = begin + warp; index < end; index += warps) {
    const HeadRow<T> row(n, index);
    unrotate_row(n, rotation, row, (row.is_query ? dq : dk) + row.at,
                 sums + (warp * 2 + (row.is_query ? 0 : 1)) * n.dim);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * n.dim; i += threads) {
    float total = 0;
    for (int w = 0; w < warps; ++w) total += sums[w * 2 * n.dim + i];
    parts[blockIdx.x * 2 * n.dim + i] = total;
  }
}

template <class T>
Heads<T> heads_of(const AttentionCall& call, const Attention::Inputs& in) {
  return {call.n.query_heads,           call.n.key_heads,     static_cast<int>(call.n.head_dim),
          data<const T>(in.q),          data<const T>(in.k),  data<const float>(in.q_norm),
          data<const float>(in.k_norm), call.saved.inverse_q, call.saved.inverse_k};
}

Rotation rotation_of(const Attention::Inputs& in) {
  return {in.cosine.shape[0], data<const float>(in.cosine), data<const float>(in.sine),
          data<const std::int32_t>(in.positions)};
}

std::int64_t rows_of(const AttentionCall& call) { return call.n.tokens * (call.n.query_heads + call.n.key_heads); }

}  // namespace

void prepare(const AttentionCall& call, const Attention::Inputs& in, bool fresh) {
  tiles_kernel<<<1, scan_threads, 0, call.stream>>>(
      call.n.tokens, call.n.segments, call.n.longest, tile_of(padded_dim(call.n.head_dim)),
      data<const std::int32_t>(in.segments.offsets), call.scratch.first_tile, call.faults);
  ANANKE_CUDA_LAUNCHED("attention: tiles");
  with_elements(call.elements, [&](auto element) {
    using T = decltype(element);
    const std::int64_t rows = rows_of(call);
    rotate_kernel<<<static_cast<unsigned>(blocks_for(rows, warps)), threads, 0, call.stream>>>(
        rows, heads_of<T>(call, in), rotation_of(in), in.eps, fresh, static_cast<T*>(call.scratch.q),
        static_cast<T*>(call.scratch.k), call.faults);
    ANANKE_CUDA_LAUNCHED("attention: norms and rotation");
  });
}

void take_delta(const AttentionCall& call, const Attention::Backward& a) {
  const std::int64_t rows = call.n.tokens * call.n.query_heads;
  with_elements(call.elements, [&](auto element) {
    using T = decltype(element);
    delta_kernel<<<static_cast<unsigned>(blocks_for(rows, warps)), threads, 0, call.stream>>>(
        rows, static_cast<int>(call.n.head_dim), data<const T>(a.o), data<const T>(a.d_o), call.scratch.delta);
    ANANKE_CUDA_LAUNCHED("attention backward: delta");
  });
}

void unrotate(const AttentionCall& call, const Attention::Backward& a) {
  const std::int64_t parts = blocks_for(call.n.tokens, tokens_per_part), dim = call.n.head_dim;
  const std::size_t shared = static_cast<std::size_t>(warps * 2 * dim) * sizeof(float);
  with_elements(call.elements, [&](auto element) {
    using T = decltype(element);
    unrotate_kernel<<<static_cast<unsigned>(parts), threads, shared, call.stream>>>(
        rows_of(call), heads_of<T>(call, a.in), rotation_of(a.in), data<T>(a.dq), data<T>(a.dk),
        call.scratch.norm_parts);
    ANANKE_CUDA_LAUNCHED("attention backward: norms");
  });
  add_partial_sums(call.stream, parts, dim, 2 * dim, call.scratch.norm_parts, data<float>(a.dq_norm));
  add_partial_sums(call.stream, parts, dim, 2 * dim, call.scratch.norm_parts + dim, data<float>(a.dk_norm));
}

}  // namespace ananke::cuda
