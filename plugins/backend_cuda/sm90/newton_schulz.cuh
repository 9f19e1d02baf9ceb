// All steps of a batch of Newton-Schulz iterations in one kernel:
//   A = X X^T (gram),  B = b A + c A A (square),  X' = a X + B X (apply)
// A and B are symmetric: only tiles [128, 256] that touch the lower triangle are computed, those that begin on the
// diagonal half as wide, and what lies below the diagonal is written at its mirrored place, too.
//
// Blocks take tiles from a counter, in one order: all matrices' tiles of a product, then those of the next product. A
// tile waits until its matrix's product before is complete, which tiles taken earlier are: no block waits for one that
// is not taken, and the SMs do not run out of work between two products. Warpgroup 0: warp 0 loads factors into a ring
// of stages, warps 1 and 2 load what is added to, and store what comes out of, the tile's halves of 64 rows, which
// warpgroups 1 and 2 compute.
#pragma once

#include "plugins/backend_cuda/sm90/gemm.cuh"

namespace ananke::cuda::sm90 {

enum Phase : int { gram, square, apply };
enum Which : int { x0, x1, a_square, b_square, matrices_of_steps };  // x0: before even steps, x1: before odd ones

struct StepMaps {
  CUtensorMap tall[matrices_of_steps], low[matrices_of_steps];  // boxes of 128 rows, of 64
};

struct StepArguments {
  int count, s, l, steps;  // X [s, l], s <= l
  float a, b, c;
  int* next;      // the tile to be taken next: 0
  int* finished;  // [count] halves of tiles that are written: 0
};

struct StepTile {
  int matrix;  // -1: there is none left
  Phase phase;
  Which x;  // X before the step
  int row, column, k_blocks;
  int needed;   // halves of tiles of the matrix that must be written before
  bool narrow;  // begins on the diagonal: [128, 128], of rows of A and the same columns
};

// Such a tile's factors are the same rows: they lie in a stage once.
struct NarrowConfig : Config<Ragged::m, Major::k, Major::k, __nv_bfloat16, 128, 3, 2> {
  static constexpr int a_bytes = 0, stage_bytes = b_bytes;
};

struct StepConfig {
  using Symmetric = Config<Ragged::m, Major::k, Major::k, __nv_bfloat16>;  // gram, square
  using Narrow = NarrowConfig;
  using Apply = Config<Ragged::m, Major::k, Major::mn, __nv_bfloat16>;
  static constexpr int tile_m = Apply::tile_m, tile_n = Apply::tile_n, slabs = Apply::slabs, halves = Apply::consumers;
  static constexpr int stages = Apply::stages, tile_slots = Apply::tile_slots, threads = Apply::threads;
  static constexpr int half_bytes = slabs * Apply::slab_bytes;
  static constexpr int barriers = 2 * (stages + tile_slots + halves);
  static constexpr std::size_t shared_bytes =
      1024 + stages * Apply::stage_bytes + halves * half_bytes + barriers * 8 + tile_slots * sizeof(StepTile);
  static_assert(Apply::tile_slabs == slabs && Symmetric::stage_bytes == Apply::stage_bytes);
};

struct StepShared {
  using C = StepConfig;
  std::uint32_t stages, slabs, barriers;
  StepTile* tiles;

  __device__ explicit StepShared(unsigned char* memory) {
    unsigned char* base = memory + (1024 - shared_address(memory) % 1024) % 1024;
    constexpr int before_barriers = C::stages * C::Apply::stage_bytes + C::halves * C::half_bytes;
    stages = shared_address(base);
    slabs = stages + C::stages * C::Apply::stage_bytes;
    barriers = stages + before_barriers;
    tiles = reinterpret_cast<StepTile*>(base + before_barriers + C::barriers * 8);
  }
  __device__ std::uint32_t stage(int i) const { return stages + i * C::Apply::stage_bytes; }
  __device__ std::uint32_t half(int i) const { return slabs + i * C::half_bytes; }
  __device__ std::uint32_t full(int i) const { return barriers + i * 8; }
  __device__ std::uint32_t empty(int i) const { return full(C::stages + i); }
  __device__ std::uint32_t tile_full(int i) const { return full(2 * C::stages + i); }
  __device__ std::uint32_t tile_empty(int i) const { return full(2 * C::stages + C::tile_slots + i); }
  // The half's slabs are the computing warpgroup's: what is added lies there, or nothing; they are the mover's.
  __device__ std::uint32_t ready(int half) const { return full(2 * (C::stages + C::tile_slots) + half); }
  __device__ std::uint32_t filled(int half) const { return ready(C::halves + half); }
};

// Tiles of the lower triangle of `down` rows of tiles, two of which are as high as a tile is wide.
__host__ __device__ constexpr int triangle_of(int down) {
  const int pairs = down / 2;
  return pairs * (pairs + 1) + (down % 2 == 0 ? 0 : pairs + 1);
}

class StepSchedule {
 public:
  __device__ explicit StepSchedule(const StepArguments& call)
      : call_(call),
        down_(pieces_of(call.s, StepConfig::tile_m)),
        triangle_(triangle_of(down_)),
        all_(down_ * pieces_of(call.l, StepConfig::tile_n)) {}

  __device__ int take() const { return atomicAdd(call_.next, 1); }

  __device__ StepTile at(int number) const {
    StepTile tile{};
    tile.matrix = -1;
    const int of_matrix = 2 * triangle_ + all_, of_step = call_.count * of_matrix, of_gram = call_.count * triangle_;
    const int step = number / of_step;
    if (step >= call_.steps) return tile;
    int rest = number - step * of_step;
    tile.phase = rest < of_gram ? gram : rest < 2 * of_gram ? square : apply;
    tile.x = step % 2 == 0 ? x0 : x1;
    tile.k_blocks = pieces_of(tile.phase == gram ? call_.l : call_.s, tile_k);
    tile.needed = StepConfig::halves * (step * of_matrix + tile.phase * triangle_);
    rest -= tile.phase * of_gram;
    if (tile.phase == apply) {  // tiles that run at the same time share columns of X
      tile.matrix = rest / all_;
      rest -= tile.matrix * all_;
      tile.column = rest / down_ * StepConfig::tile_n;
      tile.row = rest % down_ * StepConfig::tile_m;
    } else {
      tile.matrix = rest / triangle_;
      place(rest - tile.matrix * triangle_, tile);
    }
    return tile;
  }

 private:
  // Before pair p of rows, whose rows have p + 1 tiles each, are p (p + 1).
  __device__ static void place(int number, StepTile& tile) {
    int pair = static_cast<int>((sqrtf(4.0f * static_cast<float>(number) + 1) - 1) / 2);
    while (pair * (pair + 1) > number) --pair;
    while ((pair + 1) * (pair + 2) <= number) ++pair;
    const int rest = number - pair * (pair + 1);
    tile.row = (2 * pair + rest / (pair + 1)) * StepConfig::tile_m;
    tile.column = rest % (pair + 1) * StepConfig::tile_n;
    tile.narrow = tile.row == tile.column;
  }

  const StepArguments& call_;
  const int down_, triangle_, all_;  // rows of tiles; tiles of a symmetric product, of X
};

// Until the matrix's tiles that this one reads are written. By the thread that loads, or tells those who do.
__device__ __forceinline__ void await_written(const int* finished, int needed) {
  if (load_acquire(finished) < needed) {
    const std::uint64_t begin = nanoseconds();
    while (load_acquire(finished) < needed) {
      __nanosleep(100);
      if (nanoseconds() - begin > longest_phase) __trap();  // a defect here, as in wait()
    }
  }
  fence_async_everywhere();
}

__device__ __forceinline__ void load_factors(const StepMaps& maps, const StepTile& tile, int block, std::uint32_t to,
                                             std::uint32_t barrier) {
  using C = StepConfig::Apply;
  const int k = block * tile_k;
  const std::uint32_t to_b = to + C::a_bytes;
  if (tile.phase == apply) {
    load_box(to, maps.tall[b_square], k, tile.row, tile.matrix, barrier);
#pragma unroll
    for (int i = 0; i < C::tile_n; i += 64) {
      load_box(to_b + i * 128, maps.low[tile.x], tile.column + i, k, tile.matrix, barrier);
    }
    return;
  }
  const CUtensorMap& from = maps.tall[tile.phase == gram ? tile.x : a_square];
  load_box(to, from, k, tile.row, tile.matrix, barrier);
  if (tile.narrow) return;
#pragma unroll
  for (int i = 0; i < C::tile_n; i += 128) load_box(to_b + i * 128, from, k, tile.column + i, tile.matrix, barrier);
}

__device__ __forceinline__ void produce_factors(const StepShared& shared, const StepMaps& maps,
                                                const StepArguments& call) {
  const StepSchedule schedule(call);
  Place<StepConfig::stages> stage;
  Place<StepConfig::tile_slots> slot;
  int number = schedule.take();
  while (true) {
    const StepTile tile = schedule.at(number);
    if (tile.matrix >= 0) await_written(call.finished + tile.matrix, tile.needed);
    wait(shared.tile_empty(slot.at), slot.parity ^ 1);
    shared.tiles[slot.at] = tile;
    arrive(shared.tile_full(slot.at));
    slot.advance();
    if (tile.matrix < 0) return;
    number = schedule.take();  // early: the answer takes a while
    const int bytes = tile.narrow ? StepConfig::Narrow::stage_bytes : StepConfig::Apply::stage_bytes;
    for (int block = 0; block < tile.k_blocks; ++block) {
      wait(shared.empty(stage.at), stage.parity ^ 1);
      arrive_expecting(shared.full(stage.at), bytes);
      load_factors(maps, tile, block, shared.stage(stage.at), shared.full(stage.at));
      stage.advance();
    }
  }
}

// What is added to the half of a tile, to where the half's result will stand.
__device__ __forceinline__ void load_added(const StepMaps& maps, const StepTile& tile, int row, std::uint32_t slabs,
                                           std::uint32_t barrier) {
  const CUtensorMap& from = maps.low[tile.phase == square ? a_square : tile.x];
  const int slabs_of_tile = tile.narrow ? StepConfig::Narrow::slabs : StepConfig::slabs;
  fence_async_everywhere();
  arrive_expecting(barrier, slabs_of_tile * StepConfig::Apply::slab_bytes);
  for (int i = 0; i < slabs_of_tile; ++i) {
    load_box(slabs + i * StepConfig::Apply::slab_bytes, from, tile.column + i * 64, row, tile.matrix, barrier);
  }
}

// Slabs of the half; of a symmetric product those on the diagonal and below it, or `mirrored` those below.
__device__ __forceinline__ void store_half(const StepMaps& maps, const StepArguments& call, const StepTile& tile,
                                           int row, bool mirrored, std::uint32_t slabs) {
  const CUtensorMap& to = maps.low[tile.phase == gram ? a_square : tile.phase == square ? b_square : tile.x ^ x1];
  const int columns = tile.phase == apply ? call.l : mirrored ? row : row + 64;  // that are stored
#pragma unroll
  for (int i = 0; i < StepConfig::slabs; ++i) {
    const int column = tile.column + i * 64;
    if (column >= columns || row >= call.s) continue;
    const std::uint32_t from = slabs + i * StepConfig::Apply::slab_bytes;
    store_box(to, mirrored ? row : column, mirrored ? column : row, tile.matrix, from);
  }
  close_stores();
}

// One thread for each half.
__device__ __forceinline__ void move_half(const StepShared& shared, const StepMaps& maps, const StepArguments& call,
                                          int half) {
  const std::uint32_t slabs = shared.half(half), ready = shared.ready(half), filled = shared.filled(half);
  Place<StepConfig::tile_slots> slot;
  int parity = 0;
  while (true) {
    wait(shared.tile_full(slot.at), slot.parity);
    const StepTile tile = shared.tiles[slot.at];
    arrive(shared.tile_empty(slot.at));
    slot.advance();
    if (tile.matrix < 0) return;
    const int row = tile.row + half * 64;
    if (tile.phase == gram) {
      arrive(ready);
    } else {
      load_added(maps, tile, row, slabs, ready);
    }
    wait(filled, parity);
    parity ^= 1;
    store_half(maps, call, tile, row, false, slabs);
    if (tile.phase != apply) {
      wait_stores_read();
      arrive(ready);
      wait(filled, parity);
      parity ^= 1;
      store_half(maps, call, tile, row, true, slabs);
    }
    wait_stores();
    fence_async_everywhere();
    add_release(call.finished + tile.matrix, 1);
  }
}

__device__ __forceinline__ std::uint32_t packed(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&two);
}

// 16 columns of the half's slabs: sums become themselves, `scaled` alpha times, and beta times what lies there.
template <bool scaled, int N>
__device__ __forceinline__ void add_piece(int piece, float alpha, float beta, std::uint32_t (&pairs)[4],
                                          float (&sum)[N]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int i = piece * 8 + 2 * j;
    sum[i] = fmaf(beta, __uint_as_float(pairs[j] << 16), scaled ? alpha * sum[i] : sum[i]);
    sum[i + 1] = fmaf(beta, __uint_as_float(pairs[j] & 0xffff0000u), scaled ? alpha * sum[i + 1] : sum[i + 1]);
    pairs[j] = packed(sum[i], sum[i + 1]);
  }
}

// All slabs of the half, where what is added lies.
template <class C, bool scaled>
__device__ __forceinline__ void fill_adding(std::uint32_t slabs, float alpha, float beta, float (&sum)[C::tile_n / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  const std::uint32_t row = slabs + (first + lane % 16) * 128;
  const auto at = [&](int piece) {
    return row + piece / 4 * C::slab_bytes + ((piece % 4 * 2 + lane / 16) ^ lane % 8) * 16;
  };
  std::uint32_t even[4], odd[4];  // one arrives while the other is used
  load_matrices(at(0), even);
#pragma unroll
  for (int piece = 0; piece < C::slabs * 4; piece += 2) {
    load_matrices(at(piece + 1), odd);
    add_piece<scaled>(piece, alpha, beta, even, sum);
    store_matrices(at(piece), even[0], even[1], even[2], even[3]);
    if (piece + 2 < C::slabs * 4) load_matrices(at(piece + 2), even);
    add_piece<scaled>(piece + 1, alpha, beta, odd, sum);
    store_matrices(at(piece + 1), odd[0], odd[1], odd[2], odd[3]);
  }
}

// Slab `index` of the half, transposed: rows of the slab are columns of the tile.
template <int N>
__device__ __forceinline__ void fill_transposed(std::uint32_t slab, int index, const float (&sum)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const auto pack = [&](int i) { return packed(sum[i], sum[i + 1]); };
  const std::uint32_t to = slab + (lane / 16 * 8 + lane % 8) * 128 + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
  for (int piece = 0; piece < 8; piece += 2) {
    const int i = (index * 8 + piece) * 4;
    store_transposed(to + piece * 8 * 128, pack(i), pack(i + 2), pack(i + 4), pack(i + 6));
  }
}

// This warp has filled its part of the half's slabs.
__device__ __forceinline__ void hand_over(std::uint32_t filled) {
  fence_async();
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(filled);
}

// One tile's half, from its factors to its slabs.
template <class C>
__device__ __forceinline__ void compute_tile(const StepShared& shared, const StepArguments& call, int half,
                                             std::uint32_t tile_empty, const StepTile& tile, Place<C::stages>& stage,
                                             int& parity) {
  constexpr bool symmetric = !std::is_same_v<C, StepConfig::Apply>;
  float sum[C::tile_n / 2] = {};  // not what a tile before has left: three kinds of sums are not kept at a time
  const std::uint32_t slabs = shared.half(half), ready = shared.ready(half), filled = shared.filled(half);
  const Phase phase = tile.phase;
  multiply_tile<C>(shared, tile.k_blocks, tile_k, half, stage, sum);
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(tile_empty);
  wait(ready, parity);
  parity ^= 1;
  if constexpr (!symmetric) {
    fill_adding<C, false>(slabs, 1, call.a, sum);
  } else if (phase == square) {
    fill_adding<C, true>(slabs, call.c, call.b, sum);
  } else {
#pragma unroll
    for (int i = 0; i < C::slabs; ++i) fill_slab<C>(slabs + i * C::slab_bytes, i, sum);
  }
  hand_over(filled);
  if constexpr (symmetric) {
    wait(ready, parity);
    parity ^= 1;
#pragma unroll
    for (int i = 0; i < C::slabs; ++i) fill_transposed(slabs + i * C::slab_bytes, i, sum);
    hand_over(filled);
  }
}

__device__ __forceinline__ void compute_half(const StepShared& shared, const StepArguments& call, int half) {
  using C = StepConfig;
  Place<C::stages> stage;
  Place<C::tile_slots> slot;
  int parity = 0;
  while (true) {
    wait(shared.tile_full(slot.at), slot.parity);
    const StepTile& tile = shared.tiles[slot.at];
    const std::uint32_t empty = shared.tile_empty(slot.at);
    if (tile.matrix < 0) return;
    slot.advance();
    if (tile.phase == apply) {
      compute_tile<C::Apply>(shared, call, half, empty, tile, stage, parity);
    } else if (tile.narrow) {
      compute_tile<C::Narrow>(shared, call, half, empty, tile, stage, parity);
    } else {
      compute_tile<C::Symmetric>(shared, call, half, empty, tile, stage, parity);
    }
  }
}

__global__ void __launch_bounds__(StepConfig::threads, 1)
    newton_schulz_kernel(const __grid_constant__ StepMaps maps, const __grid_constant__ StepArguments call) {
  using C = StepConfig;
  extern __shared__ unsigned char memory[];
  const StepShared shared(memory);
  const int warp = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 32, 0);  // known to be the same in a warp
  if (threadIdx.x == 0) {
    for (int i = 0; i < matrices_of_steps; ++i) {
      prefetch(maps.tall[i]);
      prefetch(maps.low[i]);
    }
    for (int i = 0; i < C::stages; ++i) {
      barrier_init(shared.full(i), 1);
      barrier_init(shared.empty(i), 4 * C::halves);  // warps
    }
    for (int i = 0; i < C::tile_slots; ++i) {
      barrier_init(shared.tile_full(i), 1);
      barrier_init(shared.tile_empty(i), 4 * C::halves + C::halves);  // warps and movers
    }
    for (int i = 0; i < C::halves; ++i) {
      barrier_init(shared.ready(i), 1);
      barrier_init(shared.filled(i), 4);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (warp < 4) {
    lower_registers<40>();
    if (threadIdx.x % 32 != 0) return;
    if (warp == 0) {
      produce_factors(shared, maps, call);
    } else if (warp <= C::halves) {
      move_half(shared, maps, call, warp - 1);
    }
  } else {
    raise_registers<232>();
    compute_half(shared, call, warp / 4 - 1);
  }
}

}  // namespace ananke::cuda::sm90
