// Gradients of rotated queries and keys, and of values. Two passes over the same scores: a block that has a tile of
// keys sums dk and dv over all queries and all query heads of its group, a block that has a tile of queries sums dq
// over all keys. Each sum has one owner and one order.
#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/operators/attention_tiles.cuh"

namespace ananke::cuda {
namespace {

template <int D>
constexpr std::size_t shared_bytes = sizeof(float) *
                                     (4 * Tiling<D>::tile_floats + 2 * Tiling<D>::score_floats + 2 * Tiling<D>::tile);

template <class T>
struct Arguments : TileArguments {
  const float *log_sum, *delta;
  const T *q, *k, *v, *d_o;
  T *dq, *dk, *dv;
};

template <int D>
struct Shared {
  float *queries, *keys, *values, *d_o, *weights, *d_scores, *log_sum, *delta;
  __device__ explicit Shared(float4* memory) {
    queries = reinterpret_cast<float*>(memory);
    keys = queries + Tiling<D>::tile_floats;
    values = keys + Tiling<D>::tile_floats;
    d_o = values + Tiling<D>::tile_floats;
    weights = d_o + Tiling<D>::tile_floats;
    d_scores = weights + Tiling<D>::score_floats;
    log_sum = d_scores + Tiling<D>::score_floats;
    delta = log_sum + Tiling<D>::tile;
  }
};

template <int D, class T>
__device__ void load_queries(const Arguments<T>& n, std::int64_t begin, std::int64_t count, std::int64_t head,
                             const Shared<D>& to) {
  const std::int64_t stride = n.query_heads * n.dim, at = begin * stride + head * n.dim;
  load_tile<D>(n.q + at, stride, count, n.dim, n.packed, to.queries);
  load_tile<D>(n.d_o + at, stride, count, n.dim, n.packed, to.d_o);
  for (int i = threadIdx.x; i < Tiling<D>::tile; i += attention_threads) {
    const std::int64_t row = (begin + i) * n.query_heads + head;
    to.log_sum[i] = i < count ? n.log_sum[row] : 0.0f;
    to.delta[i] = i < count ? n.delta[row] : 0.0f;
  }
}

template <int D, class T>
__device__ void load_keys(const Arguments<T>& n, std::int64_t begin, std::int64_t count, std::int64_t kv,
                          const Shared<D>& to) {
  const std::int64_t stride = n.key_heads * n.dim, at = begin * stride + kv * n.dim;
  load_tile<D>(n.k + at, stride, count, n.dim, n.packed, to.keys);
  load_tile<D>(n.v + at, stride, count, n.dim, n.packed, to.values);
}

template <int D>
__device__ void clear(RowSums<D>& sums) {
#pragma unroll
  for (int i = 0; i < Tiling<D>::rows; ++i) {
#pragma unroll
    for (int c = 0; c < Tiling<D>::columns * 4; ++c) sums[i][c] = 0;
  }
}

template <int D, class T>
__device__ void store_sums(const RowSums<D>& sums, T* to, std::int64_t stride, std::int64_t count, int dim) {
  float ones[Tiling<D>::rows];
#pragma unroll
  for (int i = 0; i < Tiling<D>::rows; ++i) ones[i] = 1;
  store_rows<D>(sums, ones, to, stride, count, dim);
}

// Rows are keys and columns queries: what is written lies as dk and dv need it.
template <int D, class T>
__global__ void __launch_bounds__(attention_threads) keys_kernel(Arguments<T> n) {
  extern __shared__ float4 shared_memory[];
  constexpr int R = Tiling<D>::rows, Tile = Tiling<D>::tile;
  const Shared<D> tiles(shared_memory);
  TilePlace place;
  if (!find_tile<Tile>(blockIdx.x, n.segments, n.first_tile, n.offsets, place)) return;
  const std::int64_t kv = blockIdx.y, group = n.query_heads / n.key_heads, count = place.end - place.begin;
  load_keys<D>(n, place.begin, count, kv, tiles);
  RowSums<D> dk, dv;
  clear<D>(dk);
  clear<D>(dv);
  for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head) {
    for (std::int64_t query = place.begin; query < place.segment_end; query += Tile) {
      const std::int64_t here = min(static_cast<std::int64_t>(Tile), place.segment_end - query);
      __syncthreads();
      load_queries<D>(n, query, here, head, tiles);
      __syncthreads();
      float scores[R][R], d_weights[R][R];
      multiply_rows<D>(tiles.keys, tiles.queries, scores);
      multiply_rows<D>(tiles.values, tiles.d_o, d_weights);
#pragma unroll
      for (int i = 0; i < R; ++i) {
        const int row = threadIdx.x / 16 * R + i;
#pragma unroll
        for (int j = 0; j < R; ++j) {
          const int column = threadIdx.x % 16 + 16 * j, at = row * Tiling<D>::score_stride + column;
          const bool seen = row < count && column < here && place.begin + row <= query + column;
          const float weight = seen ? expf(scores[i][j] * n.scale - tiles.log_sum[column]) : 0.0f;
          tiles.weights[at] = weight;
          tiles.d_scores[at] = seen ? weight * (d_weights[i][j] - tiles.delta[column]) * n.scale : 0.0f;
        }
      }
      __syncthreads();
      add_weighted<D>(tiles.weights, tiles.d_o, dv);
      add_weighted<D>(tiles.d_scores, tiles.queries, dk);
    }
  }
  const std::int64_t stride = n.key_heads * n.dim, at = place.begin * stride + kv * n.dim;
  store_sums<D>(dk, n.dk + at, stride, count, n.dim);
  store_sums<D>(dv, n.dv + at, stride, count, n.dim);
}

template <int D, class T>
__global__ void __launch_bounds__(attention_threads) queries_kernel(Arguments<T> n) {
  extern __shared__ float4 shared_memory[];
  constexpr int R = Tiling<D>::rows, Tile = Tiling<D>::tile;
  const Shared<D> tiles(shared_memory);
  TilePlace place;
  if (!find_tile<Tile>(blockIdx.x, n.segments, n.first_tile, n.offsets, place)) return;
  const std::int64_t head = blockIdx.y, kv = head / (n.query_heads / n.key_heads);
  const std::int64_t count = place.end - place.begin;
  load_queries<D>(n, place.begin, count, head, tiles);
  RowSums<D> dq;
  clear<D>(dq);
  for (std::int64_t key = place.segment_begin; key < place.end; key += Tile) {
    const std::int64_t here = min(static_cast<std::int64_t>(Tile), place.end - key);
    __syncthreads();
    load_keys<D>(n, key, here, kv, tiles);
    __syncthreads();
    float scores[R][R], d_weights[R][R];
    multiply_rows<D>(tiles.queries, tiles.keys, scores);
    multiply_rows<D>(tiles.d_o, tiles.values, d_weights);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int row = threadIdx.x / 16 * R + i;
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const int column = threadIdx.x % 16 + 16 * j;
        const bool seen = row < count && column < here && key + column <= place.begin + row;
        const float weight = seen ? expf(scores[i][j] * n.scale - tiles.log_sum[row]) : 0.0f;
        tiles.d_scores[row * Tiling<D>::score_stride + column] =
            seen ? weight * (d_weights[i][j] - tiles.delta[row]) * n.scale : 0.0f;
      }
    }
    __syncthreads();
    add_weighted<D>(tiles.d_scores, tiles.keys, dq);
  }
  const std::int64_t stride = n.query_heads * n.dim;
  store_sums<D>(dq, n.dq + place.begin * stride + head * n.dim, stride, count, n.dim);
}

template <int D, class T>
void allow() {
  for (const auto kernel : {keys_kernel<D, T>, queries_kernel<D, T>}) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes<D>)),
          "give attention its shared memory");
  }
}

}  // namespace

void allow_shared_memory_backward() {
  allow<64, float>();
  allow<128, float>();
  allow<256, float>();
  allow<64, bf16>();
  allow<128, bf16>();
  allow<256, bf16>();
}

void attend_backward(const AttentionCall& call, const Attention::Backward& a) {
  const Attention::Sizes& n = call.n;
  with_elements(call.elements, [&](auto element) {
    using T = decltype(element);
    const bool packed = packs_fit<T, 4>(n.head_dim, {call.scratch.q, call.scratch.k, a.in.v.data, a.d_o.data});
    const Arguments<T> arguments{tile_arguments(call, a.in, packed),
                                 call.saved.log_sum,
                                 call.scratch.delta,
                                 static_cast<const T*>(call.scratch.q),
                                 static_cast<const T*>(call.scratch.k),
                                 data<const T>(a.in.v),
                                 data<const T>(a.d_o),
                                 data<T>(a.dq),
                                 data<T>(a.dk),
                                 data<T>(a.dv)};
    with_padded_dim(n.head_dim, [&](auto padded) {
      constexpr int D = decltype(padded)::value;
      const auto tiles = static_cast<unsigned>(most_tiles(n));
      keys_kernel<D, T>
          <<<dim3(tiles, static_cast<unsigned>(n.key_heads)), attention_threads, shared_bytes<D>, call.stream>>>(
              arguments);
      ANANKE_CUDA_LAUNCHED("attention backward: keys");
      queries_kernel<D, T>
          <<<dim3(tiles, static_cast<unsigned>(n.query_heads)), attention_threads, shared_bytes<D>, call.stream>>>(
              arguments);
      ANANKE_CUDA_LAUNCHED("attention backward: queries");
    });
  });
}

}  // namespace ananke::cuda
