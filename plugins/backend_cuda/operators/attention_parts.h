// What the kernels of attention share: where documents are cut into tiles, and what is kept between the passes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "plugins/backend_cuda/operators/faults.h"
#include "runtime/operators/attention.h"
#include "runtime/operators/carve.h"

namespace ananke::cuda {

inline constexpr std::int64_t most_head_dim = 256;
inline constexpr std::int64_t tokens_per_part = 16;  // of one partial sum of dq_norm and dk_norm

// Heads are padded to 64, 128 or 256 elements; tiles are as large as shared memory allows.
constexpr int padded_dim(std::int64_t head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }
constexpr int tile_of(int padded) { return padded <= 128 ? 64 : 32; }

struct AttentionSaved {
  float *inverse_q, *inverse_k;  // [T, Hq], [T, Hkv]: 1 / sqrt(mean(q^2) + eps)
  float* log_sum;                // [T, Hq]: log sum exp of the scaled scores
};
AttentionSaved layout_saved(Carve& carve, const Attention::Sizes& s);

struct AttentionScratch {
  void *q, *k;               // [T, Hq, D], [T, Hkv, D]: normed and rotated, in the type of the activations
  std::int32_t* first_tile;  // [segments + 1]: tiles of the segments before; all 0 where the offsets are wrong
  float* delta;              // backward: [T, Hq], sum(o d_o)
  float* norm_parts;         // backward: [parts, 2, D], partial sums of dq_norm and dk_norm
};
AttentionScratch layout_scratch(Carve& carve, const Attention::Sizes& s, DType elements);

// Tiles that there are at most.
inline std::int64_t most_tiles(const Attention::Sizes& n) {
  return n.tokens / tile_of(padded_dim(n.head_dim)) + n.segments;
}

// Kernels of one call; all put on `stream`, sizes not 0.
struct AttentionCall {
  cudaStream_t stream;
  Attention::Sizes n;
  AttentionSaved saved;
  AttentionScratch scratch;
  DType elements;
  FaultSink faults;
};
// Tiles, and scratch.q and scratch.k; with `fresh`, the inverse r.m.s. are computed and kept, else taken from saved.
void prepare(const AttentionCall& call, const Attention::Inputs& in, bool fresh);
void attend(const AttentionCall& call, const Attention::Forward& a);
// For attend_backward: scratch.delta.
void take_delta(const AttentionCall& call, const Attention::Backward& a);
void attend_backward(const AttentionCall& call, const Attention::Backward& a);
// dq and dk, of scratch.q and scratch.k until here, turned back and taken through the norms, in place; and dq_norm and
// dk_norm.
void unrotate(const AttentionCall& call, const Attention::Backward& a);
// Once for each device: shared memory beyond what a kernel may use as it is.
void allow_shared_memory_forward();
void allow_shared_memory_backward();

}  // namespace ananke::cuda
