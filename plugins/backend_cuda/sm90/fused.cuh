// The products of gemm.cuh with something made of a tile's values before they are stored.
//
// Warpgroups that multiply round a tile's sums to bf16, leave them in shared memory and go on with the next tile. Three
// warps beside the one that loads take them from there, 64 rows at a time, compute what the epilogue says and write
// rows of global memory themselves. They work beside the next tile's products, so what they do costs time only where it
// takes longer than those. An epilogue is a struct with what it needs from the call and with
//   paired                                     columns of a tile: see Config in gemm.cuh
//   begin(call, tile)                          by one thread, when a tile's first pieces are about to be loaded
//   finish(call, tile, half, slabs, ready)     by the three warps: rows 64 `half` and on of a tile, which lie in
//                                              C::slabs slabs of 64 columns each (wgmma.cuh) when ready() is done
#pragma once

#include "plugins/backend_cuda/sm90/gemm.cuh"

namespace ananke::cuda::sm90 {

template <class Base, class Epilogue_>
struct Fused : Base {
  using Epilogue = Epilogue_;
  static constexpr int finishers = 3;  // warps
  static constexpr int readers = Base::readers + finishers;
  static constexpr bool paired = Epilogue::paired;
  static constexpr int step_n = paired ? Base::tile_n / 2 : Base::tile_n;
  static constexpr int handed = Base::barriers, barriers = handed + 2 * Base::consumers;
  static constexpr std::size_t shared_bytes(int groups) { return Base::shared_bytes(groups) + 2 * Base::consumers * 8; }

  static_assert(Base::ragged == Ragged::m && sizeof(typename Base::Out) == 2);
  static_assert(Base::slabs == Base::tile_slabs, "a warpgroup leaves all of its rows at once");
  static_assert(!paired || Base::b_major == Major::k);
};

template <class C>
struct FusedShared : Shared<C> {
  using Shared<C>::Shared;
  // Of the rows of consumer `half`: their values lie in its slabs; they have been read.
  __device__ std::uint32_t filled(int half) const { return this->full(C::handed + half); }
  __device__ std::uint32_t drained(int half) const { return this->full(C::handed + C::consumers + half); }
  __device__ std::uint32_t slabs(int half) const { return this->out + half * C::slabs * C::slab_bytes; }
};

template <class C>
__device__ __forceinline__ void leave_tiles(const FusedShared<C>& shared, int warpgroup) {
  float sum[C::tile_n / 2];
  Place<C::stages> stage;
  Place<C::tile_slots> slot;
  int parity = 1;  // of `drained`: slabs are empty at first
  while (true) {
    wait(shared.tile_full(slot.at), slot.parity);
    const Tile& tile = shared.tiles[slot.at];
    if (tile.group < 0) break;
    multiply_tile<C>(shared, tile.k_blocks, tile.k_last, warpgroup, stage, sum);
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.tile_empty(slot.at));
    slot.advance();
    wait(shared.drained(warpgroup), parity);
    parity ^= 1;
#pragma unroll
    for (int i = 0; i < C::slabs; ++i) fill_slab<C>(shared.slabs(warpgroup) + i * C::slab_bytes, i, sum);
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.filled(warpgroup));
  }
}

template <class C>
__device__ __forceinline__ void finish_tiles(const FusedShared<C>& shared, const Arguments& call,
                                             const typename C::Epilogue& epilogue) {
  const bool speaks = threadIdx.x % 32 == 0;
  Place<C::tile_slots> slot;
  int parity = 0;  // of `filled`
  while (true) {
    wait(shared.tile_full(slot.at), slot.parity);
    const Tile tile = shared.tiles[slot.at];
    if (tile.group < 0) break;
    __syncwarp();
    if (speaks) arrive(shared.tile_empty(slot.at));
    slot.advance();
#pragma unroll 1
    for (int half = 0; half < C::consumers; ++half) {
      epilogue.finish(call, tile, half, shared.slabs(half), [&] { wait(shared.filled(half), parity); });
      __syncwarp();
      if (speaks) arrive(shared.drained(half));
    }
    parity ^= 1;
  }
}

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    fused_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                 const __grid_constant__ Arguments call, const __grid_constant__ typename C::Epilogue epilogue) {
  extern __shared__ unsigned char memory[];
  const FusedShared<C> shared(memory);
  const int warp = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 32, 0);  // known to be the same in a warp
  if (threadIdx.x == 0) {
    prefetch(a);
    prefetch(b);
    init_barriers<C>(shared);
    for (int i = 0; i < C::consumers; ++i) {
      barrier_init(shared.filled(i), 4);  // warps
      barrier_init(shared.drained(i), C::finishers);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (warp < 4) {  // 3 x 168 registers at first, as many as 104 + 2 x 200
    lower_registers<104>();
    if (warp == 0) {
      produce<C>(shared, a, b, call, [&](const Tile& tile) { epilogue.begin(call, tile); });
    } else {
      finish_tiles<C>(shared, call, epilogue);
    }
  } else {
    raise_registers<200>();
    leave_tiles<C>(shared, warp / 4 - 1);
  }
}

}  // namespace ananke::cuda::sm90
