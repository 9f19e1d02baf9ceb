// The kernels that GroupedProducts puts on streams.
#pragma once

#include <algorithm>

#include "plugins/backend_cuda/sm90/epilogue_swiglu.cuh"
#include "plugins/backend_cuda/sm90/launch.cuh"
#include "plugins/backend_cuda/sm90/launch_fused.cuh"

namespace ananke::cuda::sm90 {

using Forward = Config<Ragged::m, Major::k, Major::k, __nv_bfloat16>;
using Backward = Config<Ragged::m, Major::k, Major::mn, __nv_bfloat16>;
using Gradient = Config<Ragged::k, Major::mn, Major::mn, float>;
using ForwardSwiglu = Fused<Forward, SwigluForward>;
using BackwardSwiglu = Fused<Backward, SwigluBackward>;
static_assert(ForwardSwiglu::finishers == PieceOfRows::warps && ForwardSwiglu::tile_m == 4 * PieceOfRows::groups);
static_assert(ForwardSwiglu::step_n == 128 && BackwardSwiglu::tile_n == SwigluBackward::tile_n);

// That each of them takes.
inline constexpr int most_grouped = std::min({most_groups<Forward>, most_groups<Backward>, most_groups<Gradient>,
                                              most_groups<ForwardSwiglu>, most_groups<BackwardSwiglu>});
inline constexpr int strip = 16;  // tiles of 128 rows beside 8 of 256 columns are what all SMs compute at a time

}  // namespace ananke::cuda::sm90
