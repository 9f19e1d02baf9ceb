#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/operators/attention_tiles.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"

namespace ananke::cuda {
namespace {

template <int D>
constexpr std::size_t shared_bytes = sizeof(float) * (2 * Tiling<D>::tile_floats + Tiling<D>::score_floats);

struct Arguments : TileArguments {
  float* log_sum;
};

// scores -> weights relative to the largest score of the row so far; rescales what was summed before.
template <int D>
__device__ void online_softmax(const TilePlace& place, std::int64_t first_key, float scale,
                               float (&scores)[Tiling<D>::rows][Tiling<D>::rows], float (&top)[Tiling<D>::rows],
                               float (&total)[Tiling<D>::rows], RowSums<D>& sums, float* weights) {
  constexpr int R = Tiling<D>::rows;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int row = threadIdx.x / 16 * R + i;
    float most = top[i];
    bool seen[R];
#pragma unroll
    for (int j = 0; j < R; ++j) {
      const std::int64_t key = first_key + threadIdx.x % 16 + 16 * j;
      seen[j] = key < place.end && key <= place.begin + row;
      scores[i][j] *= scale;
      if (seen[j]) most = fmaxf(most, scores[i][j]);
    }
    most = warp_max<16>(most);  // every row sees the first key of its segment, so from the first tile on it is finite
    const float keep = expf(top[i] - most);
    top[i] = most;
    total[i] *= keep;
#pragma unroll
    for (int c = 0; c < Tiling<D>::columns * 4; ++c) sums[i][c] *= keep;
#pragma unroll
    for (int j = 0; j < R; ++j) {
      const float weight = seen[j] ? expf(scores[i][j] - most) : 0.0f;
      total[i] += weight;
      weights[row * Tiling<D>::score_stride + threadIdx.x % 16 + 16 * j] = weight;
    }
  }
}

// A block per tile of queries and query head.
template <int D, class T>
__global__ void __launch_bounds__(attention_threads)
    forward_kernel(Arguments n, const T* q, const T* k, const T* v, T* o) {
  extern __shared__ float4 shared_memory[];
  constexpr int R = Tiling<D>::rows, Tile = Tiling<D>::tile;
  float* queries = reinterpret_cast<float*>(shared_memory);
  float* keys = queries + Tiling<D>::tile_floats;  // and then the values
  float* weights = keys + Tiling<D>::tile_floats;
  TilePlace place;
  if (!find_tile<Tile>(blockIdx.x, n.segments, n.first_tile, n.offsets, place)) return;
  const std::int64_t head = blockIdx.y, kv = head / (n.query_heads / n.key_heads);
  const std::int64_t q_stride = n.query_heads * n.dim, k_stride = n.key_heads * n.dim;
  const std::int64_t count = place.end - place.begin;
  load_tile<D>(q + place.begin * q_stride + head * n.dim, q_stride, count, n.dim, n.packed, queries);
  float top[R], total[R];
  RowSums<D> sums;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    top[i] = -INFINITY;
    total[i] = 0;
#pragma unroll
    for (int c = 0; c < Tiling<D>::columns * 4; ++c) sums[i][c] = 0;
  }
  for (std::int64_t key = place.segment_begin; key < place.end; key += Tile) {
    const std::int64_t here = min(static_cast<std::int64_t>(Tile), place.end - key);
    const std::int64_t at = key * k_stride + kv * n.dim;
    __syncthreads();
    load_tile<D>(k + at, k_stride, here, n.dim, n.packed, keys);
    __syncthreads();
    float scores[R][R];
    multiply_rows<D>(queries, keys, scores);
    online_softmax<D>(place, key, n.scale, scores, top, total, sums, weights);
    __syncthreads();
    load_tile<D>(v + at, k_stride, here, n.dim, n.packed, keys);
    __syncthreads();
    add_weighted<D>(weights, keys, sums);
  }
  float inverse[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const float sum = warp_sum<16>(total[i]);
    inverse[i] = 1 / sum;
    const int row = threadIdx.x / 16 * R + i;
    if (threadIdx.x % 16 == 0 && row < count) {
      n.log_sum[(place.begin + row) * n.query_heads + head] = top[i] + logf(sum);
    }
  }
  store_rows<D>(sums, inverse, o + place.begin * q_stride + head * n.dim, q_stride, count, n.dim);
}

template <int D, class T>
void allow() {
  check(cudaFuncSetAttribute(forward_kernel<D, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes<D>)),
        "give attention its shared memory");
}

}  // namespace

void allow_shared_memory_forward() {
  allow<64, float>();
  allow<128, float>();
  allow<256, float>();
  allow<64, bf16>();
  allow<128, bf16>();
  allow<256, bf16>();
}

void attend(const AttentionCall& call, const Attention::Forward& a) {
  const Attention::Sizes& n = call.n;
  with_elements(call.elements, [&](auto element) {
    using T = decltype(element);
    const bool packed = packs_fit<T, 4>(n.head_dim, {call.scratch.q, call.scratch.k, a.in.v.data});
    const Arguments arguments{tile_arguments(call, a.in, packed), call.saved.log_sum};
    with_padded_dim(n.head_dim, [&](auto padded) {
      constexpr int D = decltype(padded)::value;
      const dim3 grid(static_cast<unsigned>(most_tiles(n)), static_cast<unsigned>(n.query_heads));
      forward_kernel<D, T><<<grid, attention_threads, shared_bytes<D>, call.stream>>>(
          arguments, static_cast<const T*>(call.scratch.q), static_cast<const T*>(call.scratch.k),
          data<const T>(a.in.v), data<T>(a.o));
      ANANKE_CUDA_LAUNCHED("attention forward");
    });
  });
}

}  // namespace ananke::cuda
