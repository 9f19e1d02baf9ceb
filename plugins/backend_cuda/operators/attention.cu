// What surrounds the tiles of attention: where they are, norms and rotation of queries and keys and their gradients.
#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/operators/attention_parts.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/floats.cuh"
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

// How the two halves of a head's row lie on `Lanes` neighbouring lanes: of each half, a lane has `Packs` packs of N
// elements, Lanes packs apart.
template <int N_, int Lanes, int Packs>
struct RowShape {
  static constexpr int N = N_, lanes = Lanes, packs = Packs;
  static constexpr int rows = threads / Lanes;  // of a block
};

// body(RowShape{}): packs of 16 bytes where heads are of a usual size and `addresses` (of T) and `floats` allow it.
template <class T, class Body>
void with_row_shape(std::int64_t dim, std::initializer_list<const void*> addresses,
                    std::initializer_list<const void*> floats, const Body& body) {
  constexpr int N = 16 / sizeof(T);
  const bool fits = packs_fit<T, N>(dim / 2, addresses) && packs_fit<float, 4>(4, floats);
  if (fits && dim / 2 == 8 * N) {
    body(RowShape<N, 8, 1>{});
  } else if (fits && dim / 2 == 16 * N) {
    body(RowShape<N, 16, 1>{});
  } else {
    body(RowShape<1, 32, most_head_dim / 2 / 32>{});
  }
}

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

// The rows of q, then those of k, of each token.
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

template <class T, int N>
struct Halves {
  Pack<T, N> first, second;
};

// S::lanes lanes per row. Lanes behind the last row go along, for the sums of their warp.
template <class S, class T>
__global__ void __launch_bounds__(threads) rotate_kernel(std::int64_t rows, Heads<T> n, Rotation rotation, double eps,
                                                         bool fresh, T* q, T* k, FaultSink faults) {
  constexpr int N = S::N;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * S::rows + threadIdx.x / S::lanes;
  const bool exists = index < rows;
  const int lane = threadIdx.x % S::lanes, half = n.dim / 2;
  const HeadRow<T> row(n, exists ? index : rows - 1);
  const std::int64_t position = rotation.positions[row.token];
  const bool known = position >= 0 && position < rotation.cached;
  if (exists && !known && lane == 0) report(faults, Fault::position, position, row.token, rotation.cached);
  Halves<T, N> x[S::packs];
  float squares = 0;
#pragma unroll
  for (int p = 0; p < S::packs; ++p) {
    const int i = (lane + S::lanes * p) * N;
    if (i >= half) continue;
    x[p] = {load<N>(row.from + i), load<N>(row.from + half + i)};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float a = to_float(x[p].first.at[j]), b = to_float(x[p].second.at[j]);
      squares += a * a + b * b;
    }
  }
  float inverse;
  if (fresh) {
    inverse = static_cast<float>(1 / sqrt(warp_sum<S::lanes>(static_cast<double>(squares)) / n.dim + eps));
    if (exists && lane == 0) *row.inverse = inverse;
  } else {
    inverse = *row.inverse;
  }
  if (!exists || !known) return;
  T* out = (row.is_query ? q : k) + row.at;
#pragma unroll
  for (int p = 0; p < S::packs; ++p) {
    const int i = (lane + S::lanes * p) * N;
    if (i >= half) continue;
    const Pack<float, N> cosine = load_floats<N>(rotation.cosine + position * half + i),
                         sine = load_floats<N>(rotation.sine + position * half + i),
                         first_by = load_floats<N>(row.weight + i), second_by = load_floats<N>(row.weight + half + i);
    Halves<T, N> y;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float a = to_float(x[p].first.at[j]) * inverse * first_by.at[j];
      const float b = to_float(x[p].second.at[j]) * inverse * second_by.at[j];
      y.first.at[j] = from_float<T>(a * cosine.at[j] - b * sine.at[j]);
      y.second.at[j] = from_float<T>(b * cosine.at[j] + a * sine.at[j]);
    }
    store(out + i, y.first);
    store(out + half + i, y.second);
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

// Rows of queries or of keys.
template <class T>
struct HeadRows {
  std::int64_t tokens, heads;
  int dim;
  const T* from;
  const float *weight, *inverse;
  T* gradient;
};

// Gradients of rotated rows, turned back and taken through the norm, in place; `sums`: what each lane's columns have in
// the weight's gradient.
template <class S, class T>
__device__ void unrotate_rows(const HeadRows<T>& n, const Rotation& rotation, Halves<float, S::N> (&sums)[S::packs]) {
  constexpr int N = S::N;
  const int lane = threadIdx.x % S::lanes, half = n.dim / 2;
  const std::int64_t begin = blockIdx.x * tokens_per_part * n.heads,
                     end = min(begin + tokens_per_part * n.heads, n.tokens * n.heads);
  for (std::int64_t first = begin; first < end; first += S::rows) {  // as often for all lanes: they add up together
    const std::int64_t own = first + threadIdx.x / S::lanes, row = min(own, end - 1);
    const std::int64_t position = rotation.positions[row / n.heads];
    const bool known = position >= 0 && position < rotation.cached;  // told by rotate_kernel
    const std::int64_t place = known ? position * half : 0;
    const T* from = n.from + row * n.dim;
    T* gradient = n.gradient + row * n.dim;
    Halves<T, N> x[S::packs];
    Halves<float, N> d[S::packs];
    float product = 0;
#pragma unroll
    for (int p = 0; p < S::packs; ++p) {
      const int i = (lane + S::lanes * p) * N;
      if (i >= half) continue;
      x[p] = {load<N>(from + i), load<N>(from + half + i)};
      const Halves<T, N> dy{load<N>(gradient + i), load<N>(gradient + half + i)};
      const Pack<float, N> cosine = load_floats<N>(rotation.cosine + place + i),
                           sine = load_floats<N>(rotation.sine + place + i), first_by = load_floats<N>(n.weight + i),
                           second_by = load_floats<N>(n.weight + half + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float a = to_float(dy.first.at[j]), b = to_float(dy.second.at[j]);
        d[p].first.at[j] = a * cosine.at[j] + b * sine.at[j];
        d[p].second.at[j] = b * cosine.at[j] - a * sine.at[j];
        product += first_by.at[j] * d[p].first.at[j] * to_float(x[p].first.at[j]) +
                   second_by.at[j] * d[p].second.at[j] * to_float(x[p].second.at[j]);
      }
    }
    const double total = warp_sum<S::lanes>(static_cast<double>(product));
    if (own >= end || !known) continue;
    const float inverse = n.inverse[row];
    const double r = inverse;
    const auto pull = static_cast<float>(r * r * r * total / n.dim);
#pragma unroll
    for (int p = 0; p < S::packs; ++p) {
      const int i = (lane + S::lanes * p) * N;
      if (i >= half) continue;
      const Pack<float, N> first_by = load_floats<N>(n.weight + i), second_by = load_floats<N>(n.weight + half + i);
      Halves<T, N> dx;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float a = to_float(x[p].first.at[j]), b = to_float(x[p].second.at[j]);
        dx.first.at[j] = from_float<T>(inverse * first_by.at[j] * d[p].first.at[j] - a * pull);
        dx.second.at[j] = from_float<T>(inverse * second_by.at[j] * d[p].second.at[j] - b * pull);
        sums[p].first.at[j] += d[p].first.at[j] * a * inverse;
        sums[p].second.at[j] += d[p].second.at[j] * b * inverse;
      }
      store(gradient + i, dx.first);
      store(gradient + half + i, dx.second);
    }
  }
}

// A block per tokens_per_part tokens; blockIdx.y: 0 queries, 1 keys. parts: [blocks, 2, D].
template <class S, class T>
__global__ void __launch_bounds__(threads)
    unrotate_kernel(HeadRows<T> queries, HeadRows<T> keys, Rotation rotation, float* parts) {
  constexpr int N = S::N;
  extern __shared__ float shared[];  // [S::rows, D]
  const HeadRows<T> n = blockIdx.y == 0 ? queries : keys;
  const int lane = threadIdx.x % S::lanes, half = n.dim / 2;
  Halves<float, N> sums[S::packs] = {};
  unrotate_rows<S>(n, rotation, sums);
  float* own = shared + threadIdx.x / S::lanes * n.dim;
#pragma unroll
  for (int p = 0; p < S::packs; ++p) {
    const int i = (lane + S::lanes * p) * N;
    if (i >= half) continue;
    store_floats<N>(own + i, sums[p].first);
    store_floats<N>(own + half + i, sums[p].second);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n.dim; i += threads) {
    float total = 0;
    for (int row = 0; row < S::rows; ++row) total += shared[row * n.dim + i];
    parts[(blockIdx.x * 2 + blockIdx.y) * n.dim + i] = total;
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

// With what rotated rows and their gradients are read from and written to.
template <class T, class Body>
void with_shape(const AttentionCall& call, const Attention::Inputs& in, const void* q, const void* k,
                const Body& body) {
  with_row_shape<T>(call.n.head_dim, {in.q.data, in.k.data, q, k},
                    {in.q_norm.data, in.k_norm.data, in.cosine.data, in.sine.data}, body);
}

}  // namespace

void prepare(const AttentionCall& call, const Attention::Inputs& in, bool fresh) {
  tiles_kernel<<<1, scan_threads, 0, call.stream>>>(
      call.n.tokens, call.n.segments, call.n.longest, tile_of(padded_dim(call.n.head_dim)),
      data<const std::int32_t>(in.segments.offsets), call.scratch.first_tile, call.faults);
  ANANKE_CUDA_LAUNCHED("attention: tiles");
  with_elements(call.elements, [&](auto element) {
    using T = decltype(element);
    const std::int64_t rows = call.n.tokens * (call.n.query_heads + call.n.key_heads);
    with_shape<T>(call, in, call.scratch.q, call.scratch.k, [&](auto shape) {
      using S = decltype(shape);
      rotate_kernel<S, T><<<static_cast<unsigned>(blocks_for(rows, S::rows)), threads, 0, call.stream>>>(
          rows, heads_of<T>(call, in), rotation_of(in), in.eps, fresh, static_cast<T*>(call.scratch.q),
          static_cast<T*>(call.scratch.k), call.faults);
      ANANKE_CUDA_LAUNCHED("attention: norms and rotation");
    });
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
  with_elements(call.elements, [&](auto element) {
    using T = decltype(element);
    const Heads<T> n = heads_of<T>(call, a.in);
    const HeadRows<T> queries{call.n.tokens, n.query_heads, n.dim, n.q, n.q_norm, n.inverse_q, data<T>(a.dq)};
    const HeadRows<T> keys{call.n.tokens, n.key_heads, n.dim, n.k, n.k_norm, n.inverse_k, data<T>(a.dk)};
    with_shape<T>(call, a.in, a.dq.data, a.dk.data, [&](auto shape) {
      using S = decltype(shape);
      const std::size_t shared = static_cast<std::size_t>(S::rows * dim) * sizeof(float);
      unrotate_kernel<S, T><<<dim3(static_cast<unsigned>(parts), 2), threads, shared, call.stream>>>(
          queries, keys, rotation_of(a.in), call.scratch.norm_parts);
      ANANKE_CUDA_LAUNCHED("attention backward: norms");
    });
  });
  add_partial_sums(call.stream, parts, dim, 2 * dim, call.scratch.norm_parts, data<float>(a.dq_norm));
  add_partial_sums(call.stream, parts, dim, 2 * dim, call.scratch.norm_parts + dim, data<float>(a.dk_norm));
}

}  // namespace ananke::cuda
