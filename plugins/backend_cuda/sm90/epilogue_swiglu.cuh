// SwiGLU behind a grouped product, and its gradient (fused.cuh). Values are rounded to bf16 where kernels of their own
// would (operators/swiglu.cuh), so that results are the same bits as theirs.
#pragma once

#include "plugins/backend_cuda/operators/swiglu.cuh"
#include "plugins/backend_cuda/sm90/ptx.cuh"
#include "plugins/backend_cuda/sm90/schedule.cuh"

namespace ananke::cuda::sm90 {

using Pieces = Pack<bf16, 8>;

__device__ __forceinline__ Pieces as_pieces(const uint4& values) { return reinterpret_cast<const Pieces&>(values); }

// What a thread of three warps has of a tile of 128 rows: a row of every group of four that is its warp's turn, and of
// it 16-byte piece `piece` of every slab. So rows of global memory are read and written 128 bytes at a time.
struct PieceOfRows {
  static constexpr int warps = 3, groups = 32, groups_of_half = 16, slab_bytes = 64 * 128;
  const int group, row, piece;  // group: the warp's first
  __device__ __forceinline__ PieceOfRows()
      : group(static_cast<int>(threadIdx.x) / 32 - 1),
        row(static_cast<int>(threadIdx.x) % 32 / 8),
        piece(static_cast<int>(threadIdx.x) % 8) {}
  static __device__ __forceinline__ bool begins_half(int group) {
    return group >= groups_of_half && group < groups_of_half + warps;
  }
  template <class Handed>
  __device__ __forceinline__ Pieces at(const Handed& handed, int slab, int row_of_tile) const {
    const int r = row_of_tile % 64;
    return as_pieces(load_shared(handed.slabs(row_of_tile / 64) + slab * slab_bytes + r * 128 + (piece ^ r % 8) * 16));
  }
};

// The tile is x by 128 rows of gate and the same 128 of up. Keeps both, and makes `middle` = silu(gate) * up.
struct SwigluForward {
  static constexpr bool paired = true;
  bf16* both;    // [R, 2 n]: gate, and up behind it
  bf16* middle;  // [R, n]

  template <class Handed>
  __device__ __forceinline__ void finish(const Arguments& call, const Tile& tile, const Handed& handed) const {
    const PieceOfRows mine;
    handed.ready(0);
#pragma unroll 1
    for (int group = mine.group; group < mine.groups; group += mine.warps) {
      if (mine.begins_half(group)) handed.next_half();
      const int r = group * 4 + mine.row;
      const std::int64_t row = tile.row + r;
#pragma unroll
      for (int slab = 0; slab < 2; ++slab) {
        const int column = tile.column + slab * 64 + mine.piece * 8;
        if (r >= tile.rows || column >= call.n) continue;
        const Pieces gate = mine.at(handed, slab, r), up = mine.at(handed, 2 + slab, r);
        bf16* const to = both + 2 * row * call.n + column;
        store(to, gate);
        store(to + call.n, up);
        store(middle + row * call.n + column, swiglu(gate, up));
      }
    }
    handed.done(1);
  }
};

// The tile is the gradient of `middle`. Makes those of both, and weight x middle again.
struct SwigluBackward {
  static constexpr bool paired = false;
  static constexpr int tile_n = 256, slabs = tile_n / 64;
  const bf16* both;          // [R, 2 n]
  const float* row_weights;  // [R], or null: all 1
  bf16* dboth;               // [R, 2 n]
  bf16* middle;              // [R, n]
  float* sums;               // [R, pieces of 256 columns of n]: of <middle / weight, its gradient>; or null

  // What a thread needs of a row in global memory. A slab's is read again, for the next row, as soon as it is used, and
  // is on its way while the other slabs are.
  struct Row {
    uint4 gate[slabs], up[slabs];
    float weight = 1;
  };
  __device__ __forceinline__ void read(Row& to, int slab, std::int64_t row, int column, int n) const {
    const bf16* const from = both + 2 * row * n + column + slab * 64;
    to.gate[slab] = *reinterpret_cast<const uint4*>(from);
    to.up[slab] = *reinterpret_cast<const uint4*>(from + n);
  }

  template <class Handed>
  __device__ __forceinline__ void finish(const Arguments& call, const Tile& tile, const Handed& handed) const {
    const PieceOfRows mine;
    const int n = call.n, column = tile.column + mine.piece * 8;
    const auto within = [&](int slab, int r) { return r < tile.rows && column + slab * 64 < n; };
    Row have{};
    const int first = mine.group * 4 + mine.row;
#pragma unroll
    for (int slab = 0; slab < slabs; ++slab) {
      if (within(slab, first)) read(have, slab, tile.row + first, column, n);
    }
    if (row_weights && first < tile.rows) have.weight = row_weights[tile.row + first];
    handed.ready(0);
#pragma unroll 1
    for (int group = mine.group; group < mine.groups; group += mine.warps) {
      if (mine.begins_half(group)) handed.next_half();
      const int r = group * 4 + mine.row, next = r + mine.warps * 4;
      const std::int64_t row = tile.row + r, at = 2 * row * n + column;
      const float weight = have.weight;
      if (row_weights && next < tile.rows) have.weight = row_weights[tile.row + next];
      float sum = 0;
#pragma unroll
      for (int slab = 0; slab < slabs; ++slab) {
        Pieces m, dgate, dup;
        const float part = swiglu_backward(as_pieces(have.gate[slab]), as_pieces(have.up[slab]),
                                           mine.at(handed, slab, r), weight, m, dgate, dup);
        if (within(slab, next)) read(have, slab, tile.row + next, column, n);
        if (!within(slab, r)) continue;
        sum += part;
        bf16* const to = dboth + at + slab * 64;
        store(to, dgate);
        store(to + n, dup);
        store(middle + row * n + column + slab * 64, m);
      }
      if (!sums) continue;
      sum = warp_sum<8>(sum);
      if (r < tile.rows && mine.piece == 0) sums[row * pieces_of(n, tile_n) + tile.column / tile_n] = sum;
    }
    handed.done(1);
  }
};

}  // namespace ananke::cuda::sm90
