// What the forward and the backward pass of attention share.
#pragma once

#include <cstdint>

#include "plugins/backend_host/thread_pool.h"
#include "runtime/operators/attention.h"
#include "runtime/operators/carve.h"

namespace ananke::host {

inline constexpr std::int64_t queries_per_block = 64;
inline constexpr std::int64_t tokens_per_task = 64;

struct AttentionSaved {
  float *inverse_q, *inverse_k;  // [T, Hq], [T, Hkv]: 1 / sqrt(mean(q^2) + eps)
  float* log_sum;                // [T, Hq]: log sum exp of the scaled scores
};
AttentionSaved layout_saved(Carve& carve, const Attention::Sizes& s);

struct QueryBlock {
  std::int32_t begin, end;  // queries, in flat tokens
  std::int32_t first_key;   // of their segment
  std::int32_t segment;
};

// Blocks of one segment lie together, ascending.
struct AttentionScratch {
  float *q, *k;               // [T, Hq, D], [T, Hkv, D]: normed and rotated
  QueryBlock* blocks;         // at most T / queries_per_block + segments
  std::int64_t* first_block;  // [segments + 1]
  float* scores;              // [threads, queries_per_block, longest]
  // Backward only:
  float* dscores;       // like scores
  float* delta;         // [T, Hq]: sum(o d_o)
  float *dq, *dk, *dv;  // [T, Hq, D]: of rotated q; of rotated k and of v, a part from each query head
  float* norm_parts;    // [blocks of tokens_per_task, 2, D]: partial sums of dq_norm and dk_norm
};
AttentionScratch layout_scratch(Carve& carve, const Attention::Sizes& s, int threads);

// Cuts segments into blocks; checks the offsets, which the call could not see. Returns the number of blocks.
std::int64_t make_blocks(const Attention::Inputs& in, const Attention::Sizes& n, const AttentionScratch& scratch);

// scratch.q and scratch.k from the inputs; with `fresh`, the inverse r.m.s. are computed and kept, else taken from
// saved.
void norm_and_rope(ThreadPool& pool, const Attention::Inputs& in, const Attention::Sizes& n,
                   const AttentionSaved& saved, const AttentionScratch& scratch, bool fresh);

}  // namespace ananke::host
