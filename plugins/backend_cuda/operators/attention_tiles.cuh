// Tiles of rows in shared memory, and the two products of a tile with another, by 256 threads on f32 cores.
//
// Thread (ty, tx) of 16 x 16 has R = Tile / 16 consecutive rows from ty * R on. Of a [Tile, Tile] product it has the
// columns tx + 16 j; of a [Tile, D] product the columns 64 c + 4 tx + {0, 1, 2, 3}. Rows are 4 elements longer than
// what they hold, so that 16-byte accesses of neighbouring rows fall on different banks.
#pragma once

#include <cmath>

#include "plugins/backend_cuda/operators/attention_parts.h"
#include "plugins/backend_cuda/operators/elements.cuh"

namespace ananke::cuda {

inline constexpr int attention_threads = 256;

template <int D>
struct Tiling {
  static constexpr int tile = tile_of(D);
  static constexpr int rows = tile / 16;  // of a thread
  static constexpr int columns = D / 64;  // groups of 4, of a thread
  static constexpr int stride = D + 4;    // of a tile of rows
  static constexpr int score_stride = tile + 4;
  static constexpr int tile_floats = tile * stride;
  static constexpr int score_floats = tile * score_stride;
  static_assert(stride % 4 == 0 && score_stride % 4 == 0 && tile_floats % 4 == 0 && score_floats % 4 == 0);
};

// What every kernel of tiles is given.
struct TileArguments {
  std::int64_t segments, query_heads, key_heads;
  int dim;
  float scale;  // of scores
  bool packed;  // rows can be read 4 elements at once
  const std::int32_t *first_tile, *offsets;
};

// `packed`: whether rows at all these addresses can.
inline TileArguments tile_arguments(const AttentionCall& call, const Attention::Inputs& in, bool packed) {
  const Attention::Sizes& n = call.n;
  return {n.segments,
          n.query_heads,
          n.key_heads,
          static_cast<int>(n.head_dim),
          1 / std::sqrt(static_cast<float>(n.head_dim)),
          packed,
          call.scratch.first_tile,
          data<const std::int32_t>(in.segments.offsets)};
}

struct TilePlace {
  std::int64_t begin, end;  // the tile's tokens
  std::int64_t segment_begin, segment_end;
};

// The `index`-th tile; false where there are fewer.
template <int Tile>
__device__ bool find_tile(std::int64_t index, std::int64_t segments, const std::int32_t* first_tile,
                          const std::int32_t* offsets, TilePlace& place) {
  if (index >= first_tile[segments]) return false;
  std::int64_t low = 0, high = segments;  // first_tile[low] <= index < first_tile[high]
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (first_tile[middle] <= index ? low : high) = middle;
  }
  place.segment_begin = offsets[low];
  place.segment_end = offsets[low + 1];
  place.begin = place.segment_begin + (index - first_tile[low]) * Tile;
  place.end = min(place.begin + Tile, place.segment_end);
  return true;
}

// to[r] = from[r * stride ...], r < count; zeros in the rest of the tile and behind `dim`. `packed`: rows can be read 4
// elements at once.
template <int D, class T>
__device__ void load_tile(const T* from, std::int64_t stride, std::int64_t count, int dim, bool packed, float* to) {
  constexpr int groups = D / 4;
  for (int i = threadIdx.x; i < Tiling<D>::tile * groups; i += attention_threads) {
    const int row = i / groups, column = i % groups * 4;
    float4 out = make_float4(0, 0, 0, 0);
    const T* at = from + row * stride + column;
    if (row < count && packed && column < dim) {
      const Pack<T, 4> values = load<4>(at);
      out = make_float4(to_float(values.at[0]), to_float(values.at[1]), to_float(values.at[2]), to_float(values.at[3]));
    } else if (row < count) {
      if (column < dim) out.x = to_float(at[0]);
      if (column + 1 < dim) out.y = to_float(at[1]);
      if (column + 2 < dim) out.z = to_float(at[2]);
      if (column + 3 < dim) out.w = to_float(at[3]);
    }
    *reinterpret_cast<float4*>(to + row * Tiling<D>::stride + column) = out;
  }
}

// out[i][j] = a[row i] . b[column j]
template <int D>
__device__ void multiply_rows(const float* a, const float* b, float (&out)[Tiling<D>::rows][Tiling<D>::rows]) {
  constexpr int R = Tiling<D>::rows, stride = Tiling<D>::stride;
  const float* first = a + threadIdx.x / 16 * R * stride;
  const float* second = b + threadIdx.x % 16 * stride;
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int j = 0; j < R; ++j) out[i][j] = 0;
  }
#pragma unroll 4
  for (int d = 0; d < D; d += 4) {
    float4 x[R], y[R];
#pragma unroll
    for (int i = 0; i < R; ++i) x[i] = *reinterpret_cast<const float4*>(first + i * stride + d);
#pragma unroll
    for (int j = 0; j < R; ++j) y[j] = *reinterpret_cast<const float4*>(second + j * 16 * stride + d);
#pragma unroll
    for (int i = 0; i < R; ++i) {
#pragma unroll
      for (int j = 0; j < R; ++j) {
        out[i][j] += x[i].x * y[j].x;
        out[i][j] += x[i].y * y[j].y;
        out[i][j] += x[i].z * y[j].z;
        out[i][j] += x[i].w * y[j].w;
      }
    }
  }
}

template <int D>
using RowSums = float[Tiling<D>::rows][Tiling<D>::columns * 4];

// sums[i] += sum over u of scores[row i][u] b[u]
template <int D>
__device__ void add_weighted(const float* scores, const float* b, RowSums<D>& sums) {
  constexpr int R = Tiling<D>::rows, C = Tiling<D>::columns;
  const float* weights = scores + threadIdx.x / 16 * R * Tiling<D>::score_stride;
  const float* from = b + threadIdx.x % 16 * 4;
  for (int u = 0; u < Tiling<D>::tile; u += 4) {
    float4 w[R];
#pragma unroll
    for (int i = 0; i < R; ++i) w[i] = *reinterpret_cast<const float4*>(weights + i * Tiling<D>::score_stride + u);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float4 x = *reinterpret_cast<const float4*>(from + (u + v) * Tiling<D>::stride + c * 64);
#pragma unroll
        for (int i = 0; i < R; ++i) {
          const float weight = v == 0 ? w[i].x : v == 1 ? w[i].y : v == 2 ? w[i].z : w[i].w;
          sums[i][c * 4] += weight * x.x;
          sums[i][c * 4 + 1] += weight * x.y;
          sums[i][c * 4 + 2] += weight * x.z;
          sums[i][c * 4 + 3] += weight * x.w;
        }
      }
    }
  }
}

// to[r * stride ...] = sums[row r] * factor[i], r < count.
template <int D, class T>
__device__ void store_rows(const RowSums<D>& sums, const float (&factor)[Tiling<D>::rows], T* to, std::int64_t stride,
                           std::int64_t count, int dim) {
  constexpr int R = Tiling<D>::rows, C = Tiling<D>::columns;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int row = threadIdx.x / 16 * R + i;
    if (row >= count) continue;
#pragma unroll
    for (int c = 0; c < C; ++c) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int column = c * 64 + threadIdx.x % 16 * 4 + u;
        if (column < dim) to[row * stride + column] = from_float<T>(sums[i][c * 4 + u] * factor[i]);
      }
    }
  }
}

// body(integral_constant<int, D>) with the padded dimension.
template <class Body>
void with_padded_dim(std::int64_t head_dim, const Body& body) {
  switch (padded_dim(head_dim)) {
    case 64: body(std::integral_constant<int, 64>{}); break;
    case 128: body(std::integral_constant<int, 128>{}); break;
    default: body(std::integral_constant<int, 256>{}); break;
  }
}

}  // namespace ananke::cuda
