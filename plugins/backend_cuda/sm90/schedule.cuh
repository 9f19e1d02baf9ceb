// Which tile of the output a block computes next. Blocks take tiles from a counter in device memory, in one order, as
// they come to an end of the one before: where other kernels hold some of the SMs, the rest go on. How many tiles there
// are follows from offsets that lie on the device.
#pragma once

#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "plugins/backend_cuda/sm90/arguments.h"

namespace ananke::cuda::sm90 {

inline constexpr int tile_k = 64;  // of k at a time: a row of a slab

struct Tile {
  int group;        // -1: there is none left
  int row, column;  // where it begins; rows: of all groups', those of `ragged_m`, else of the group's matrix
  int rows;         // that are the group's, of ragged_m
  int k_begin;      // row that the sum begins with, of ragged_k
  int k_blocks;     // pieces of tile_k, at least one
  int k_last;       // of the last one belong to the sum, of ragged_k: 0 where the group is empty
  int padding;
};

__device__ __forceinline__ int pieces_of(int n, int size) { return (n + size - 1) / size; }

// Belongs to one warp of a block.
template <Ragged ragged, int tile_m, int tile_n>
class Schedule {
 public:
  static constexpr int table_ints(int groups) { return 2 * groups + 1; }

  // By a whole warp; `table`: in shared memory, table_ints. Wrong offsets are reported, and then there are no tiles.
  __device__ Schedule(const Arguments& call, int* table)
      : call_(call), offsets_(table), ends_(table + call.groups + 1), across_(pieces_of(call.n, tile_n)) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    bool wrong = false;
    if (lane == 0) offsets_[0] = offset(0);
    for (int first = 0; first < call.groups && !wrong; first += 32) {
      const int group = first + lane;
      const bool any = group < call.groups;
      const int begin = any ? offset(group) : 0, end = any ? offset(group + 1) : 0;
      const unsigned bad = __ballot_sync(all_lanes, begin > end || end > call.rows || (group == 0 && begin != 0));
      if (bad != 0 && blockIdx.x == 0 && lane == __ffs(static_cast<int>(bad)) - 1) {
        report(call.faults, Fault::group_rows, group, begin, end, call.rows);
      }
      wrong = bad != 0;
      int until = any ? tiles_of(end - begin) : 0;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(all_lanes, until, step);
        if (lane >= step) until += below;
      }
      if (any) {
        offsets_[group + 1] = end;
        ends_[group] = tiles_ + until;
      }
      tiles_ += __shfl_sync(all_lanes, until, 31);
    }
    if (wrong) tiles_ = 0;
    __syncwarp();
  }

  // By one thread from here on. The number of a tile that no other block has.
  __device__ int take() const { return atomicAdd(&call_.counter->next, 1); }

  __device__ Tile at(int number) const {
    Tile tile{};
    tile.group = -1;
    if (number >= tiles_) return tile;
    const int group = group_of(number);
    const int begin = offsets_[group], rows = offsets_[group + 1] - begin;
    place(number - (group == 0 ? 0 : ends_[group - 1]), ragged == Ragged::m ? rows : call_.m, tile);
    tile.group = group;
    if constexpr (ragged == Ragged::m) {
      tile.rows = rows - tile.row < tile_m ? rows - tile.row : tile_m;
      tile.row += begin;
      tile.k_blocks = pieces_of(call_.k, tile_k);
    } else {
      tile.rows = tile_m;
      tile.k_begin = begin;
      tile.k_blocks = rows > 0 ? pieces_of(rows, tile_k) : 1;
      tile.k_last = rows - (tile.k_blocks - 1) * tile_k;
    }
    return tile;
  }

  // When this block has taken a number that is no tile: the last one makes the counter as it was.
  __device__ void leave() const {
    __threadfence();
    if (atomicAdd(&call_.counter->done, 1) != static_cast<int>(gridDim.x) - 1) return;
    call_.counter->next = 0;
    call_.counter->done = 0;
  }

 private:
  __device__ int offset(int group) const {
    return call_.offsets ? call_.offsets[group] : (group == 0 ? 0 : call_.rows);
  }
  __device__ int tiles_of(int rows) const {
    if constexpr (ragged == Ragged::m) return rows > 0 ? pieces_of(rows, tile_m) * across_ : 0;
    return rows > 0 || !call_.add ? pieces_of(call_.m, tile_m) * across_ : 0;
  }
  // The first group that ends behind this tile.
  __device__ int group_of(int number) const {
    int low = 0, high = call_.groups - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (ends_[middle] > number) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  // Strips of some tiles of m, along n, so that blocks that run at the same time share what they load in L2.
  __device__ void place(int number, int m, Tile& tile) const {
    const int down = pieces_of(m, tile_m), strip = number / (call_.strip * across_), first = strip * call_.strip;
    const int width = down - first < call_.strip ? down - first : call_.strip, in_strip = number - first * across_;
    tile.column = in_strip / width * tile_n;
    tile.row = (first + in_strip % width) * tile_m;
  }

  const Arguments& call_;
  int* const offsets_;
  int* const ends_;  // tiles of the groups up to this one
  const int across_;
  int tiles_ = 0;
};

}  // namespace ananke::cuda::sm90
