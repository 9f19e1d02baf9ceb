// The products of gemm.cuh with something made of a tile's values before they are stored.
//
// Warpgroups that multiply round a tile's sums to bf16, leave them in shared memory and go on with the next tile. Three
// warps beside the one that loads take them from there, compute what the epilogue says and write rows of global memory
// themselves. They work beside the next tile's products, so what they do costs time only where it takes longer than
// those. An epilogue is a struct with what it needs from the call and with
//   paired                        columns of a tile: see Config in gemm.cuh
//   finish(call, tile, handed)    by the three warps: what a tile's values, as `handed` (below) has them, become. Each
//                                 warp calls ready(0), next_half() and done(1), in this order
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

// The values of a tile, as bf16 in slabs of 64 columns (wgmma.cuh), those of 64 rows in each half.
template <class C>
struct Handed {
  const FusedShared<C>& shared;
  const int parity;  // of `filled`
  __device__ __forceinline__ std::uint32_t slabs(int half) const { return shared.slabs(half); }
  __device__ __forceinline__ void ready(int half) const { wait(shared.filled(half), parity); }
  __device__ __forceinline__ void done(int half) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.drained(half));
  }
  __device__ __forceinline__ void next_half() const {
    done(0);
    ready(1);
  }
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
  Place<C::tile_slots> slot;
  int parity = 0;
  while (true) {
    wait(shared.tile_full(slot.at), slot.parity);
    const Tile tile = shared.tiles[slot.at];
    if (tile.group < 0) break;
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.tile_empty(slot.at));
    slot.advance();
    epilogue.finish(call, tile, Handed<C>{shared, parity});
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
  if (warp < 4) {  // 3 x 168 registers at first, as many as 136 + 2 x 184
    lower_registers<136>();
    if (warp == 0) {
      produce<C>(shared, a, b, call);
    } else {
      finish_tiles<C>(shared, call, epilogue);
    }
  } else {
    raise_registers<184>();
    leave_tiles<C>(shared, warp / 4 - 1);
  }
}

}  // namespace ananke::cuda::sm90
