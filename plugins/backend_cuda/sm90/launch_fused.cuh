// Puts the kernel of fused.cuh on a stream (static: see launch.cuh).
#pragma once

#include "plugins/backend_cuda/sm90/fused.cuh"
#include "plugins/backend_cuda/sm90/launch.cuh"

namespace ananke::cuda::sm90 {

// Once for each kernel and device, before the first launch.
template <class C>
static void prepare_fused() {
  static_assert(C::shared_bytes(0) <= most_shared);
  check(cudaFuncSetAttribute(fused_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared),
        "give a product's kernel its shared memory");
}

// At most `blocks` blocks. `a`: one matrix; `b`: one for each group; of `call` everything but the output. Where C is
// paired, call.n columns of the output are followed by as many in `b`.
template <class C>
static void launch_fused(cudaStream_t stream, const TensorMaps& maps, int blocks, const Matrices& a, const Matrices& b,
                         const Arguments& call, const typename C::Epilogue& epilogue) {
  const std::int64_t across = (call.n + C::step_n - 1) / C::step_n;
  const auto grid =
      static_cast<unsigned>(std::min<std::int64_t>(blocks, (call.rows / C::tile_m + call.groups) * across));
  const CUtensorMap a_map = maps.of(a, C::tile_m);
  const CUtensorMap b_map = maps.of(b, C::b_major == Major::k ? C::step_n : tile_k);
  fused_kernel<C><<<grid, C::threads, C::shared_bytes(call.groups), stream>>>(a_map, b_map, call, epilogue);
  ANANKE_CUDA_LAUNCHED("fused grouped product for sm_90");
}

}  // namespace ananke::cuda::sm90
