// What the tile kernel is given beside the maps of its tensors.
#pragma once

#include <cstdint>

#include "plugins/backend_cuda/operators/faults.h"

namespace ananke::cuda::sm90 {

// Which size differs from group to group: group g has rows [offsets[g], offsets[g + 1]) of one table of rows.
//   m: out[r, n] = sum_k a[r, k] b_g[n, k], r of group g
//   k: out_g[m, n] = sum_r a[r, m] b[r, n] over r of group g
enum class Ragged { m, k };

struct TileCounter {  // zeros between launches
  int next, done;
};

struct Arguments {
  const std::int32_t* offsets;  // [groups + 1] on the device; null: one group of all rows
  int groups, rows;             // rows: of the table
  int m, n, k;                  // those that are not ragged
  bool add;                     // ragged k, f32: to what is in `out`
  int strip;                    // tiles of m that are computed side by side
  void* out;
  std::int64_t out_stride;  // elements
  TileCounter* counter;
  FaultSink faults;
};

}  // namespace ananke::cuda::sm90
