// Puts the tile kernel on a stream. Kernels that are templates have a handle of their own in every translation unit, so
// what prepares and what launches them is static, too.
#pragma once

#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/sm90/gemm.cuh"
#include "plugins/backend_cuda/sm90/tensor_maps.h"

namespace ananke::cuda::sm90 {

inline constexpr int most_shared = 232448;  // bytes that a block may have
// That the table of a launch has room for.
template <class C>
inline constexpr int most_groups = static_cast<int>((most_shared - C::shared_bytes(0)) / (2 * sizeof(int)));

// Once for each kernel and device, before the first launch: a block may use as much shared memory as there is.
template <class C>
static void prepare() {
  static_assert(C::shared_bytes(0) <= most_shared);
  check(cudaFuncSetAttribute(gemm_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared),
        "give a product's kernel its shared memory");
}

// At most `blocks` blocks. `a`: one matrix; `b`: one for each group where m is ragged, else one; `out` the other way.
template <class C>
static void launch(cudaStream_t stream, const TensorMaps& maps, int blocks, const Matrices& a, const Matrices& b,
                   const Matrices& out, Arguments call) {
  const auto pieces = [](std::int64_t n, std::int64_t size) { return (n + size - 1) / size; };
  const std::int64_t across = pieces(call.n, C::tile_n);
  const std::int64_t most = C::ragged == Ragged::m ? (call.rows / C::tile_m + call.groups) * across
                                                   : call.groups * pieces(call.m, C::tile_m) * across;
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(blocks, most));
  const CUtensorMap a_map = maps.of(a, C::a_major == Major::k ? C::tile_m : tile_k);
  const CUtensorMap b_map = maps.of(b, C::b_major == Major::k ? C::tile_n : tile_k);
  const CUtensorMap out_map = maps.of(out, 64);
  call.out = out.data;
  call.out_stride = out.stride;
  gemm_kernel<C><<<grid, C::threads, C::shared_bytes(call.groups), stream>>>(a_map, b_map, out_map, call);
  ANANKE_CUDA_LAUNCHED("grouped product for sm_90");
}

}  // namespace ananke::cuda::sm90
