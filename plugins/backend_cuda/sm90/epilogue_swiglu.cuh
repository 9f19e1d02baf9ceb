// SwiGLU behind a grouped product, and its gradient (fused.cuh). Values are rounded to bf16 where kernels of their own
// would (operators/swiglu.cuh), so that results are the same bits as theirs.
#pragma once

#include "plugins/backend_cuda/operators/swiglu.cuh"
#include "plugins/backend_cuda/sm90/epilogue_rows.cuh"

namespace ananke::cuda::sm90 {

// The tile is x by 128 rows of gate and the same 128 of up. Keeps both, and makes `middle` = silu(gate) * up.
struct SwigluForward {
  static constexpr bool paired = true;
  bf16* both;    // [R, 2 n]: gate, and up behind it
  bf16* middle;  // [R, n]

  __device__ __forceinline__ void begin(const Arguments&, const Tile&) const {}

  template <class Ready>
  __device__ __forceinline__ void finish(const Arguments& call, const Tile& tile, int half, std::uint32_t slabs,
                                         const Ready& ready) const {
    const PieceOfRows mine(half);
    ready();
#pragma unroll 1
    for (int r = mine.row; r < 64 && half * 64 + r < tile.rows; r += mine.step) {
      const std::int64_t row = tile.row + half * 64 + r;
#pragma unroll
      for (int slab = 0; slab < 2; ++slab) {
        const int column = tile.column + slab * 64 + mine.piece * 8;
        if (column >= call.n) continue;
        const Pieces gate = mine.at(slabs, slab, r), up = mine.at(slabs, 2 + slab, r);
        bf16* const to = both + 2 * row * call.n + column;
        store(to, gate);
        store(to + call.n, up);
        store(middle + row * call.n + column, swiglu(gate, up));
      }
    }
  }
};

// The tile is the gradient of `middle`. Makes those of both, and weight x middle again. `ahead`: what the tile needs of
// `both` is on its way into L2 while the tile is multiplied.
template <bool ahead = true>
struct SwigluBackward {
  static constexpr bool paired = false;
  static constexpr int tile_n = 256, slabs_of_tile = tile_n / 64, map_rows = 128;
  CUtensorMap both_map;      // boxes of map_rows rows; gate and up are two matrices
  const bf16* both;          // [R, 2 n]
  const float* row_weights;  // [R], or null: all 1
  bf16* dboth;               // [R, 2 n]
  bf16* middle;              // [R, n]
  float* sums;               // [R, pieces of 256 columns of n]: of <middle / weight, its gradient>; or null

  __device__ __forceinline__ void begin(const Arguments& call, const Tile& tile) const {
    if constexpr (ahead) {
#pragma unroll
      for (int i = 0; i < tile_n; i += 64) {
        if (tile.column + i >= call.n) continue;
        prefetch_box(both_map, tile.column + i, tile.row, 0);
        prefetch_box(both_map, tile.column + i, tile.row, 1);
      }
    }
  }

  template <class Ready>
  __device__ __forceinline__ void finish(const Arguments& call, const Tile& tile, int half, std::uint32_t slabs,
                                         const Ready& ready) const {
    const PieceOfRows mine(half);
    const int n = call.n, column = tile.column + mine.piece * 8;
#pragma unroll 1
    for (int r = mine.row; r < 64; r += mine.step) {
      const bool any = half * 64 + r < tile.rows;
      const std::int64_t row = tile.row + half * 64 + r, at = 2 * row * n + column;
      uint4 gate[slabs_of_tile], up[slabs_of_tile];
      float weight = 1;
#pragma unroll
      for (int slab = 0; slab < slabs_of_tile; ++slab) {
        if (!any || column + slab * 64 >= n) continue;
        gate[slab] = *reinterpret_cast<const uint4*>(both + at + slab * 64);
        up[slab] = *reinterpret_cast<const uint4*>(both + at + slab * 64 + n);
      }
      if (any && row_weights) weight = row_weights[row];
      if (r < mine.step) ready();  // loads are on their way
      float sum = 0;
#pragma unroll
      for (int slab = 0; slab < slabs_of_tile; ++slab) {
        if (!any || column + slab * 64 >= n) continue;
        Pieces m, dgate, dup;
        sum +=
            swiglu_backward(as_pieces(gate[slab]), as_pieces(up[slab]), mine.at(slabs, slab, r), weight, m, dgate, dup);
        bf16* const to = dboth + at + slab * 64;
        store(to, dgate);
        store(to + n, dup);
        store(middle + row * n + column + slab * 64, m);
      }
      if (!sums) continue;
      sum = warp_sum<8>(sum);
      if (any && mine.piece == 0) sums[row * pieces_of(n, tile_n) + tile.column / tile_n] = sum;
    }
  }
};

}  // namespace ananke::cuda::sm90
