// Role "experts": brings token copies to the ranks that hold their experts, and results back.
//
// Every rank of the expert axis has tokens of its own and computes with some of the experts. A microbatch is cut by its
// *source* tokens into chunks, a number fixed by the plan, so that all ranks make the same calls whatever their data
// and the worst case of one chunk bounds every buffer. While a chunk is computed, the next one travels:
//
//   use ─ plan, sizes ─ start ─ per MoE layer and microbatch:
//
//   forward                                        backward (dispatch calls and mlp forward: where made again)
//     begin                                          begin
//     dispatch_begin(0)                              dispatch_begin(0)      combine_backward_begin(0)
//     for c:                                         for c:
//       dispatch_begin(c + 1)   x leaves               dispatch_begin(c + 1)  combine_backward_begin(c + 1)   dy leaves
//       dispatch_end(c)         rows are there         dispatch_end(c)        mlp forward, without outputs
//       mlp forward: outputs                           combine_backward_end(c)       dy of rows is there
//       combine_begin(c)        results leave          mlp backward: d_rows, d_row_weights
//       combine_end(c - 1)      y of its tokens        dispatch_backward_begin(c)    dx and dweights leave
//     combine_end(last)                                dispatch_backward_end(c - 1)  dx, dweights of its tokens
//                                                    dispatch_backward_end(last)
//
// Calls only put work on streams; inputs are complete and outputs are wanted on `compute`. What a call reads of the
// decoder's buffers (x, dy: in *_begin of any chunk up to its *_end; outputs, d_rows, d_row_weights: in the *_begin
// that takes them) is overwritten by later work on `compute`, which the role orders after its own reading. A host that
// must know how many copies travel reads that once, in begin() of the forward (Device::read, counted), and keeps it by
// layer and slot for begin() with `again`; `saved` then holds what the forward left there, or with `dispatch_again`
// nothing. An implementation that counts on the device reads nothing at all: no call and no size here needs a number of
// copies. Built-in: local (the expert axis is 1; every rank computes with all experts).
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/placement.h"
#include "runtime/operators/operator_set.h"
#include "runtime/roles/backend.h"
#include "runtime/roles/context.h"
#include "runtime/roles/traffic.h"

namespace ananke {

// What all sizes follow from; the same on every rank but for `rank`.
struct ExpertSizes {
  std::int64_t tokens;  // of one microbatch on one rank, at most
  std::int64_t hidden, experts, k;
  int ranks = 1;               // of the expert axis
  int rank = 0;                // own, on that axis
  bool recompute = false;      // dispatch is made again in the backward of some layer
  DType compute = DType::f32;  // of tokens, rows and their gradients
  ExpertRange local() const { return experts_of(rank, ranks, static_cast<int>(experts)); }  // that this rank holds
};

struct Routing {
  TensorView indices;  // i32 [T, k]
  TensorView weights;  // f32 [T, k]
  TensorView counts;   // i32 [E]: of this rank's tokens
};

// One MoE layer's exchange of one microbatch: the same in all of its calls, but that views of the other direction may
// be empty.
struct ExpertExchange {
  int layer;            // of the decoder
  int slot;             // which of the microbatches in flight
  bool again;           // backward of a layer and slot whose forward was the last one: the same routing
  bool dispatch_again;  // in this backward the dispatch is made again: nothing was kept of that of the forward
  Routing routing;
  TensorView x, y;              // [T, H] in ExpertSizes::compute; T <= ExpertSizes::tokens
  TensorView dy, dx, dweights;  // [T, H], [T, H] likewise; f32 [T, k]
  Region saved;                 // saved(); from begin() to the layer's last call
  Region workspace;             // workspace(); scratch of one call on the compute stream
};

// One chunk's buffers at the ranks that hold the experts, the decoder's own, in ExpertSizes::compute. Those of the
// first group are valid from dispatch_begin() to the chunk's last call and never shared with the chunk before; the
// others hold one chunk at a time.
struct ExpertChunk {
  int index;
  TensorView rows;     // [capacity, H]: the copies, grouped by local expert
  TensorView offsets;  // i32 [local experts + 1]: the i-th has rows [offsets[i], offsets[i + 1])
  Region saved;        // chunk_saved()
  TensorView outputs;  // [capacity, H]: what the experts made of the rows; forward only
  // Backward only. d_weighted and row_weights: dy of the row's token, the gradient of weight x output, and that weight.
  TensorView d_weighted, row_weights;  // [capacity, H]; f32 [capacity]
  TensorView d_rows, d_row_weights;    // [capacity, H]; f32 [capacity]
};

struct TokenRange {
  std::int64_t begin, count;
};
// The source tokens of chunk `chunk` of `chunks` where this rank has `tokens` of at most `most`.
inline TokenRange chunk_tokens(std::int64_t most, std::int64_t tokens, int chunks, int chunk) {
  const std::int64_t each = (most + chunks - 1) / chunks;
  const std::int64_t begin = std::min(chunk * each, tokens);
  return {begin, std::min(begin + each, tokens) - begin};
}

struct ExpertsStart {
  const StartContext& context;  // context.expert: ExpertSizes::ranks ranks
  ExpertSizes sizes;
  int layers;  // of the decoder: ExpertExchange::layer is below it
  int slots;   // microbatches in flight
};

class Experts {
 public:
  static constexpr const char* role = "experts";
  virtual ~Experts() = default;
  // May tokens travel to the ranks of the expert axis? Without it a mesh has an expert axis of 1.
  virtual bool exchanges_tokens() const { return false; }
  // Before anything else: what the backend computes with. Outlives the role.
  virtual void use(const OperatorSet& operators) = 0;

  // Pure, before start.
  virtual int chunks() const { return 1; }                                     // of every microbatch
  virtual std::int64_t capacity(const ExpertSizes& s) const = 0;               // rows of one chunk at most
  virtual std::size_t saved(const ExpertSizes&) const { return 0; }            // bytes, per layer and microbatch
  virtual std::size_t chunk_saved(const ExpertSizes&) const { return 0; }      // bytes, per chunk of those
  virtual std::size_t workspace(const ExpertSizes&) const { return 0; }        // bytes
  virtual std::vector<PlanLine> plan(const ExpertSizes&) const { return {}; }  // of what start() allocates
  virtual std::vector<CollectiveUse> exchanges(const ExpertSizes&) const { return {}; }  // what it sends at most

  virtual void start(const ExpertsStart& start) = 0;
  virtual void begin(Stream& compute, const ExpertExchange& a) = 0;
  virtual void dispatch_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) = 0;
  // Fills rows and offsets.
  virtual void dispatch_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) = 0;
  virtual void combine_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) = 0;
  // y[t] = sum of weight x output, for the chunk's tokens.
  virtual void combine_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) = 0;
  virtual void combine_backward_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) = 0;
  // Fills d_weighted and row_weights.
  virtual void combine_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) = 0;
  virtual void dispatch_backward_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) = 0;
  // dx[t] = sum over the token's copies, dweights[t, j] = d_row_weights of its choice j, for the chunk's tokens.
  virtual void dispatch_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) = 0;
  // What this rank received since start.
  virtual Traffic traffic() const { return {}; }
};

}  // namespace ananke
