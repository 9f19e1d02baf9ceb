// Matrix products of groups in bf16 with f32 sums: one kernel for compute capability 9.0, a template over tile, stages,
// how factors lie, which size is ragged, and the type of the output.
//
// A block stays on its SM and computes tiles [128, tile_n] one after the other (schedule.cuh). Its first warpgroup
// copies pieces of 64 of k into a ring of `stages` in shared memory (TMA); two more multiply them (wgmma), 64 rows of
// the tile each, and store the tile through shared memory while pieces of the next tile arrive. Sums are made in one
// order, so results are the same bits in every run.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "plugins/backend_cuda/sm90/ptx.cuh"
#include "plugins/backend_cuda/sm90/schedule.cuh"
#include "plugins/backend_cuda/sm90/wgmma.cuh"

namespace ananke::cuda::sm90 {

// `slabs`: of 64 rows of 128 bytes, that a warpgroup has for what it stores.
template <Ragged ragged_, Major a_major_, Major b_major_, class Out_, int tile_n_ = 256, int stages_ = 3,
          int slabs_ = 4>
struct Config {
  using Out = Out_;
  static constexpr Ragged ragged = ragged_;
  static constexpr Major a_major = a_major_, b_major = b_major_;
  static constexpr int tile_m = 128, tile_n = tile_n_, stages = stages_, slabs = slabs_;
  static constexpr int consumers = 2, threads = 128 * (1 + consumers), tile_slots = 2;
  static constexpr int slab_bytes = 64 * 128, a_bytes = tile_m * 128, b_bytes = tile_n * 128;
  static constexpr int stage_bytes = a_bytes + b_bytes, out_bytes = consumers * slabs * slab_bytes;
  static constexpr int barriers = 2 * (stages + tile_slots);
  // What fused.cuh has others for: warps that a tile is told to; columns of the output from tile to tile; whether these
  // are half of a tile's, and the others lie `call.n` behind them.
  static constexpr int readers = 4 * consumers, step_n = tile_n;
  static constexpr bool paired = false;
  static constexpr int out_columns = 128 / static_cast<int>(sizeof(Out)), tile_slabs = tile_n / out_columns;
  // A slab begins at a multiple of 1024 bytes, which the launch does not promise.
  static constexpr std::size_t shared_bytes(int groups) {
    return 1024 + stages * stage_bytes + out_bytes + barriers * 8 + tile_slots * sizeof(Tile) +
           Schedule<ragged, tile_m, tile_n>::table_ints(groups) * sizeof(int);
  }

  static_assert(tile_n == 256 || tile_n == 128);
  static_assert(tile_m == 64 * consumers && tile_slabs % slabs == 0);
  static_assert((ragged == Ragged::m) == (a_major == Major::k), "rows of groups lie one after the other");
  static_assert(ragged == Ragged::m || b_major == Major::mn, "rows of groups lie one after the other");
  static_assert(std::is_same_v<Out, float> || std::is_same_v<Out, __nv_bfloat16>);
};

template <class C>
struct Shared {
  std::uint32_t stages, out, barriers;
  Tile* tiles;
  int* table;

  __device__ explicit Shared(unsigned char* memory) {
    unsigned char* base = memory + (1024 - shared_address(memory) % 1024) % 1024;
    stages = shared_address(base);
    out = stages + C::stages * C::stage_bytes;
    barriers = out + C::out_bytes;
    tiles = reinterpret_cast<Tile*>(base + C::stages * C::stage_bytes + C::out_bytes + C::barriers * 8);
    table = reinterpret_cast<int*>(tiles + C::tile_slots);
  }
  __device__ std::uint32_t stage(int i) const { return stages + i * C::stage_bytes; }
  __device__ std::uint32_t full(int i) const { return barriers + i * 8; }
  __device__ std::uint32_t empty(int i) const { return full(C::stages + i); }
  __device__ std::uint32_t tile_full(int i) const { return full(2 * C::stages + i); }
  __device__ std::uint32_t tile_empty(int i) const { return full(2 * C::stages + C::tile_slots + i); }
};

// A place in a ring, and the parity of the phase in which it is next filled.
template <int Size>
struct Place {
  int at = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++at < Size) return;
    at = 0;
    parity ^= 1;
  }
};

// Piece `block` of both factors.
template <class C>
__device__ __forceinline__ void load_piece(const CUtensorMap& a, const CUtensorMap& b, const Arguments& call,
                                           const Tile& tile, int block, std::uint32_t to, std::uint32_t barrier) {
  const int k = block * tile_k + (C::ragged == Ragged::k ? tile.k_begin : 0);
  if constexpr (C::a_major == Major::k) {
    load_box(to, a, k, tile.row, 0, barrier);
  } else {
#pragma unroll
    for (int i = 0; i < C::tile_m; i += 64) load_box(to + i * 128, a, tile.row + i, k, 0, barrier);
  }
  const std::uint32_t to_b = to + C::a_bytes;
  const int matrix = C::ragged == Ragged::m ? tile.group : 0;
  if constexpr (C::b_major == Major::k) {
    load_box(to_b, b, k, tile.column, matrix, barrier);
    if constexpr (C::paired) load_box(to_b + C::b_bytes / 2, b, k, tile.column + call.n, matrix, barrier);
  } else {
#pragma unroll
    for (int i = 0; i < C::tile_n; i += 64) load_box(to_b + i * 128, b, tile.column + i, k, matrix, barrier);
  }
}

// The first warp of the first warpgroup.
template <class C>
__device__ __forceinline__ void produce(const Shared<C>& shared, const CUtensorMap& a, const CUtensorMap& b,
                                        const Arguments& call) {
  const Schedule<C::ragged, C::tile_m, C::step_n> schedule(call, shared.table);
  if (threadIdx.x % 32 != 0) return;
  Place<C::stages> stage;
  Place<C::tile_slots> slot;
  int number = schedule.take();
  while (true) {
    const Tile tile = schedule.at(number);
    wait(shared.tile_empty(slot.at), slot.parity ^ 1);
    shared.tiles[slot.at] = tile;
    arrive(shared.tile_full(slot.at));
    slot.advance();
    if (tile.group < 0) break;
    number = schedule.take();  // early: the answer takes a while
    for (int block = 0; block < tile.k_blocks; ++block) {
      wait(shared.empty(stage.at), stage.parity ^ 1);
      arrive_expecting(shared.full(stage.at), C::stage_bytes);
      load_piece<C>(a, b, call, tile, block, shared.stage(stage.at), shared.full(stage.at));
      stage.advance();
    }
  }
  schedule.leave();
}

// Rows of a piece that are not the group's count as 0 in both factors: what lies there may be NaN. By all consumers.
template <class C>
__device__ __forceinline__ void clear_rows(std::uint32_t stage, int first) {
  const int pieces = (64 - first) * 8, all = C::stage_bytes / C::slab_bytes * pieces;
  for (int i = static_cast<int>(threadIdx.x) - 128; i < all; i += 128 * C::consumers) {
    store_shared(stage + i / pieces * C::slab_bytes + first * 128 + i % pieces * 16, uint4{0, 0, 0, 0});
  }
  fence_async();
  sync_named(1 + C::consumers, 128 * C::consumers);
}

// `shared`: with a ring of stages as Shared<C> has it.
template <class C, class Ring>
__device__ __forceinline__ void multiply_tile(const Ring& shared, int k_blocks, int k_last, int warpgroup,
                                              Place<C::stages>& stage, float (&sum)[C::tile_n / 2]) {
  const bool speaks = threadIdx.x % 32 == 0;
  int before = 0;
  for (int block = 0; block < k_blocks; ++block) {
    wait(shared.full(stage.at), stage.parity);
    const std::uint32_t address = shared.stage(stage.at);
    if constexpr (C::ragged == Ragged::k) {
      if (block == k_blocks - 1 && k_last < tile_k) clear_rows<C>(address, k_last);
    }
    const std::uint64_t a = describe<C::a_major>(address + warpgroup * C::slab_bytes),
                        b = describe<C::b_major>(address + C::a_bytes);
    begin_products();
#pragma unroll
    for (int i = 0; i < tile_k / 16; ++i) {
      multiply<C::a_major, C::b_major>(sum, a + i * next_k<C::a_major>, b + i * next_k<C::b_major>, block | i);
    }
    close_products();
    wait_products<1>();
    if (block > 0 && speaks) arrive(shared.empty(before));  // the batch before is done
    before = stage.at;
    stage.advance();
  }
  wait_products<0>();
  hold(sum);
  if (speaks) arrive(shared.empty(before));
}

// Slab `index` of a warpgroup's 64 rows of a tile, swizzled.
template <class C>
__device__ __forceinline__ void fill_slab(std::uint32_t slab, int index, const float (&sum)[C::tile_n / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  if constexpr (sizeof(typename C::Out) == 2) {
    const auto pack = [&](int i) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(sum[i], sum[i + 1]);
      return *reinterpret_cast<const std::uint32_t*>(&two);
    };
    const std::uint32_t row = slab + (first + lane % 16) * 128;
#pragma unroll
    for (int piece = 0; piece < 8; piece += 2) {
      const int i = (index * 8 + piece) * 4;
      store_matrices(row + ((piece + lane / 16) ^ lane % 8) * 16, pack(i), pack(i + 2), pack(i + 4), pack(i + 6));
    }
  } else {
    const int r = lane / 4;  // and 8 more
    const std::uint32_t row = slab + (first + r) * 128 + lane % 2 * 8;
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      const int i = (index * 4 + eight) * 4;
      const std::uint32_t to = row + ((2 * eight + lane % 4 / 2) ^ r) * 16;
      store_shared(to, sum[i], sum[i + 1]);
      store_shared(to + 8 * 128, sum[i + 2], sum[i + 3]);
    }
  }
}

// The first `rows` of a warpgroup's slabs, which begin at (row, column) of the output: behind them are another group's.
template <class C>
__device__ __forceinline__ void copy_rows(std::uint32_t slabs, int rows, int row, int column, const Arguments& call) {
  constexpr int in_piece = 16 / sizeof(typename C::Out);
  const int pieces = rows * 8;
  for (int i = static_cast<int>(threadIdx.x) % 128; i < C::slabs * pieces; i += 128) {
    const int slab = i / pieces, r = i % pieces / 8, piece = i % 8,
              at = column + slab * C::out_columns + piece * in_piece;
    if (at >= call.n) continue;
    const uint4 values = load_shared(slabs + slab * C::slab_bytes + r * 128 + (piece ^ r % 8) * 16);
    auto* out = static_cast<typename C::Out*>(call.out) + (row + r) * call.out_stride + at;
    *reinterpret_cast<uint4*>(out) = values;
  }
}

template <class C>
__device__ __forceinline__ void store_tile(const Shared<C>& shared, const CUtensorMap& out, const Arguments& call,
                                           const Tile& tile, int warpgroup, const float (&sum)[C::tile_n / 2]) {
  const bool leads = threadIdx.x % 128 == 0;
  const int row = tile.row + warpgroup * 64, left = tile.rows - warpgroup * 64, rows = left < 64 ? left : 64;
  const std::uint32_t slabs = shared.out + warpgroup * C::slabs * C::slab_bytes;
  const int matrix = C::ragged == Ragged::m ? 0 : tile.group;
  if (rows <= 0) return;
#pragma unroll
  for (int first = 0; first < C::tile_slabs; first += C::slabs) {
    const int column = tile.column + first * C::out_columns;
    if (column >= call.n) return;
    if (leads) wait_stores_read();  // of what was stored before
    sync_named(1 + warpgroup, 128);
#pragma unroll
    for (int i = 0; i < C::slabs; ++i) fill_slab<C>(slabs + i * C::slab_bytes, first + i, sum);
    fence_async();
    sync_named(1 + warpgroup, 128);
    if (rows < 64) {
      copy_rows<C>(slabs, rows, row, column, call);
    } else if (leads) {
#pragma unroll
      for (int i = 0; i < C::slabs; ++i) {
        const int at = column + i * C::out_columns;
        if (at >= call.n) continue;
        if (C::ragged == Ragged::k && call.add) {
          add_box(out, at, row, matrix, slabs + i * C::slab_bytes);
        } else {
          store_box(out, at, row, matrix, slabs + i * C::slab_bytes);
        }
      }
      close_stores();
    }
  }
}

template <class C>
__device__ __forceinline__ void consume(const Shared<C>& shared, const CUtensorMap& out, const Arguments& call,
                                        int warpgroup) {
  float sum[C::tile_n / 2];
  Place<C::stages> stage;
  Place<C::tile_slots> slot;
  while (true) {
    wait(shared.tile_full(slot.at), slot.parity);
    const Tile& next = shared.tiles[slot.at];
    if (next.group < 0) break;
    multiply_tile<C>(shared, next.k_blocks, next.k_last, warpgroup, stage, sum);
    const Tile tile = next;  // read here: registers are few while sums are made
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.tile_empty(slot.at));
    slot.advance();
    store_tile<C>(shared, out, call, tile, warpgroup, sum);
  }
  if (threadIdx.x % 128 == 0) wait_stores();
}

// By one thread of a block, before the others.
template <class C>
__device__ __forceinline__ void init_barriers(const Shared<C>& shared) {
  for (int i = 0; i < C::stages; ++i) {
    barrier_init(shared.full(i), 1);
    barrier_init(shared.empty(i), 4 * C::consumers);  // warps
  }
  for (int i = 0; i < C::tile_slots; ++i) {
    barrier_init(shared.tile_full(i), 1);
    barrier_init(shared.tile_empty(i), C::readers);
  }
}

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                const __grid_constant__ CUtensorMap out, const __grid_constant__ Arguments call) {
  extern __shared__ unsigned char memory[];
  const Shared<C> shared(memory);
  const int warp = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 32, 0);  // known to be the same in a warp
  if (threadIdx.x == 0) {
    prefetch(a);
    prefetch(b);
    prefetch(out);
    init_barriers(shared);
    fence_barrier_init();
  }
  __syncthreads();
  if (warp < 4) {
    lower_registers<40>();
    if (warp == 0) produce<C>(shared, a, b, call);
  } else {
    raise_registers<232>();
    consume<C>(shared, out, call, warp / 4 - 1);
  }
}

}  // namespace ananke::cuda::sm90
