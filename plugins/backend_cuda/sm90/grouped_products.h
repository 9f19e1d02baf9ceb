// Products of groups of rows by kernels for compute capability 9.0 (H100, H200, GH200): bf16 factors, f32 sums. Where
// groups begin stands on the device and is not read by the host. The same bits in every run.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <span>

#include "plugins/backend_cuda/operators/device_facts.h"
#include "plugins/backend_cuda/operators/faults.h"
#include "plugins/backend_cuda/operators/stream_slots.h"
#include "plugins/backend_cuda/sm90/arguments.h"
#include "plugins/backend_cuda/sm90/tensor_maps.h"

namespace ananke::cuda::sm90 {

// Group g has rows [offsets[g], offsets[g + 1]) of `rows`. Offsets that do not rise from 0 to at most `rows` are
// reported as Fault::group_rows, and nothing is computed.
struct Groups {
  const std::int32_t* offsets;  // [count + 1] on the device; null: all rows are one group
  std::int64_t count, rows;
};

// The gradient of SwiGLU, whose width is F: what it reads and writes, R rows one after the other each.
struct SwigluGradient {
  const void* both;          // bf16 [R, 2 F]: as multiply_swiglu gave it
  const float* row_weights;  // [R], or null: all 1
  void* dboth;               // bf16 [R, 2 F]
  void* middle;              // bf16 [R, F]: row weight x silu(gate) * up
  float* sums;               // [R, swiglu_sums(F)], whose sums are <silu(gate) * up, w_g^T dy>; or null
};
// Numbers of a row that the sum of a row of F is left in.
constexpr std::int64_t swiglu_sums(std::int64_t width) { return (width + 255) / 256; }

class GroupedProducts {
 public:
  // On the current device. On one that is not of compute capability 9.0, and where `facts` are those expected, nothing
  // is taken. Takes a few hundred bytes of `memory`, as does a launch from each of up to four streams.
  GroupedProducts(const DeviceFacts& facts, Faults& faults, Arena& memory);

  // Whether the kernels take these matrices (tensor_maps.h), all bf16 or f32, and so many groups.
  bool take(std::int64_t groups, std::span<const Matrices> matrices) const;

  // out[r] = w_g x[r] for rows r of group g; `transposed`: w_g^T x[r]. x [R, K] and w, a matrix for each group, are
  // bf16; so is out [R, N], whose rows behind the last group are not touched.
  void multiply(cudaStream_t stream, const Groups& groups, const Matrices& x, const Matrices& w, bool transposed,
                const Matrices& out);
  // The same with SwiGLU behind it: w_g [2 F, K] is gate [F, K] and up right behind it; both [R, 2 F] = w_g x[r], and
  // middle [R, F] = silu(gate x[r]) * (up x[r]) of what stands in `both`. All bf16, as multiply() and a kernel of the
  // activation would give them, to the bit.
  void multiply_swiglu(cudaStream_t stream, const Groups& groups, const Matrices& x, const Matrices& w,
                       const Matrices& both, const Matrices& middle);
  // The gradient of `middle`, w_g^T dy[r] with dy [R, K] and w_g [K, F], goes on through SwiGLU and is not kept.
  void multiply_swiglu_backward(cudaStream_t stream, const Groups& groups, const Matrices& dy, const Matrices& w,
                                const SwigluGradient& gradient);
  // out_g = a[rows of g]^T b[rows of g], or added to what is there. a [R, M] and b [R, N] are bf16, out is f32. A group
  // without rows gives zeros, or leaves its matrix as it is.
  void multiply_rows(cudaStream_t stream, const Groups& groups, const Matrices& a, const Matrices& b,
                     const Matrices& out, bool add);

 private:
  static void prepare_swiglu();
  Arguments arguments(cudaStream_t stream, const Groups& groups);  // those of every kind of product

  const int blocks_;  // 0: not this device
  const FaultSink faults_;
  std::optional<StreamSlots> counters_;
  std::optional<TensorMaps> maps_;
};

}  // namespace ananke::cuda::sm90
