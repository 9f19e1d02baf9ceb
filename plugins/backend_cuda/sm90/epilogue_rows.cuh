// What an epilogue (fused.cuh) reads and writes, and the one that stores rows as they are.
#pragma once

#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/sm90/ptx.cuh"
#include "plugins/backend_cuda/sm90/schedule.cuh"

namespace ananke::cuda::sm90 {

using Pieces = Pack<bf16, 8>;

__device__ __forceinline__ Pieces as_pieces(const uint4& values) { return reinterpret_cast<const Pieces&>(values); }

// What a thread of three warps has of 64 rows of a tile: piece `piece` of every slab in row `row` of the half and in
// each `step`th one behind it. Eight threads have a row, so that rows of global memory are read and written 128 bytes
// at a time. Warps take turns at having one row more.
struct PieceOfRows {
  static constexpr int warps = 3, step = 4 * warps, slab_bytes = 64 * 128;
  const int row, piece;
  __device__ __forceinline__ explicit PieceOfRows(int half)
      : row((static_cast<int>(threadIdx.x) / 32 + half) % warps * 4 + static_cast<int>(threadIdx.x) % 32 / 8),
        piece(static_cast<int>(threadIdx.x) % 8) {}
  __device__ __forceinline__ Pieces at(std::uint32_t slabs, int slab, int in_half) const {
    return as_pieces(load_shared(slabs + slab * slab_bytes + in_half * 128 + (piece ^ in_half % 8) * 16));
  }
};

struct StoreRows {
  static constexpr bool paired = false;
  bf16* out;            // [R, n]
  std::int64_t stride;  // elements from row to row

  __device__ __forceinline__ void begin(const Arguments&, const Tile&) const {}

  template <class Ready>
  __device__ __forceinline__ void finish(const Arguments& call, const Tile& tile, int half, std::uint32_t slabs,
                                         const Ready& ready) const {
    const PieceOfRows mine(half);
    ready();
#pragma unroll 2
    for (int r = mine.row; r < 64 && half * 64 + r < tile.rows; r += mine.step) {
      bf16* const to = out + (tile.row + half * 64 + r) * stride;
#pragma unroll
      for (int slab = 0; slab < 4; ++slab) {
        const int column = tile.column + slab * 64 + mine.piece * 8;
        if (column < call.n) store(to + column, mine.at(slabs, slab, r));
      }
    }
  }
};

}  // namespace ananke::cuda::sm90
