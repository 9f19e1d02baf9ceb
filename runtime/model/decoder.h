// The decoder (Qwen3-MoE) block by block: forward and backward by operators on one stream. Knows operators and roles,
// nothing of ranks or memory owners: weights, gradients and every buffer are handed in.
//
//   layer:  n1 = norm(x);  a = o_proj(attention(q,k,v of n1));  h = x + a;  n2 = norm(h);  y = h + mlp(n2)
//
// All activations are [T, H] in ExpertSizes::compute, T the tokens of one microbatch on this rank (0 is allowed);
// router, loss, logits, the weights of norms and all gradients of weights are f32.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "runtime/comm/placement.h"
#include "runtime/model/parameter_table.h"
#include "runtime/model/recompute.h"
#include "runtime/operators/operator_set.h"
#include "runtime/roles/experts.h"
#include "runtime/roles/parameters.h"

namespace ananke {

class Model;
class RegionCutter;

// One microbatch on the device.
struct DeviceBatch {
  std::int64_t tokens = 0;  // T
  TensorView ids;           // i32 [T]
  TensorView targets;       // i32 [T], -1: none
  TensorView positions;     // i32 [T]
  Segments segments;
  TensorView whole;  // i32 [2] = {0, T}: all tokens as one group, for dense MLPs
  std::int64_t valid_targets = 0;
};

// The routing decision of one layer and microbatch, which is never made again, and what goes in and out around it
// (operators/router.h).
struct RoutingDecision {
  TensorView indices;     // i32 [T, k]; empty for a dense layer
  bool decided = false;   // the indices are given (recompute, replay): do not decide again
  TensorView bias;        // [E], chosen by but not weighed with; or empty
  TensorView statistics;  // f64 [2E + 2], written by a forward; or empty
  TensorView factors;     // [E + 1], gradients of the statistics for a backward; or empty
};

struct BlockIo {
  const DeviceBatch& batch;
  std::span<const UnitViews> units;  // in the order of Block::units
  Region kept;                       // of this block and microbatch: SavedBytes::kept
  Region made_again;                 // SavedBytes::made_again; blocks and microbatches may share one
  Region workspace;                  // shared scratch, workspace_bytes()
  RoutingDecision routing;
  int slot = 0;  // which of the microbatches in flight
  // Called where a layer forward comes to its experts, whose unit's weights need not be there before; and where a layer
  // backward has put all that makes the gradient of their unit on the stream. May be empty.
  std::function<void()> experts_begin = {}, experts_done = {};
};

struct HeadOutput {
  TensorView loss;    // f64 [1], added to
  TensorView scale;   // f32 [1]; only used with gradients
  TensorView logits;  // f32 [T, V] or empty
};

class Decoder {
 public:
  // `at`: whose units it computes with. rope_cosine, rope_sine: [max positions, head_dim / 2] on the device. All
  // arguments but `recompute` outlive the decoder.
  Decoder(const Model& model, const ParameterTable& table, const Placement& placement, const MeshCoordinates& at,
          const OperatorSet& operators, Experts& experts, const ExpertSizes& sizes, Recompute recompute,
          const RouterRule& rule, TensorView rope_cosine, TensorView rope_sine);

  // What a block's backward needs of its forward: kept between the two, or made again right before it.
  struct SavedBytes {
    std::size_t kept, made_again;
  };
  SavedBytes saved_bytes(const Block& block, std::int64_t tokens, std::int64_t segments, std::int64_t longest) const;
  std::size_t workspace_bytes(std::int64_t tokens, std::int64_t segments, std::int64_t longest) const;

  void embed(Stream& stream, const BlockIo& io, const TensorView& y) const;
  void embed_backward(Stream& stream, const BlockIo& io, const TensorView& dy) const;
  void layer_forward(Stream& stream, const Block& block, const BlockIo& io, const TensorView& x,
                     const TensorView& y) const;
  // Before a backward: what was not kept of the forward. Of MoE layers' experts, the backward does it chunk by chunk.
  void layer_again(Stream& stream, const Block& block, const BlockIo& io, const TensorView& x) const;
  // gradient: dy on entry, dx on return.
  void layer_backward(Stream& stream, const Block& block, const BlockIo& io, const TensorView& x,
                      const TensorView& gradient) const;
  void head_forward(Stream& stream, const Block& block, const BlockIo& io, const TensorView& x,
                    const HeadOutput& out) const;
  // Forward and backward together; dx is written.
  void head_forward_backward(Stream& stream, const Block& block, const BlockIo& io, const TensorView& x,
                             const HeadOutput& out, const TensorView& dx) const;

 private:
  struct Saved;
  struct SavedCutter;
  struct Scratch;
  struct Dispatched;
  struct Chunk;
  struct Extent {  // what buffer sizes depend on
    std::int64_t tokens, segments, longest;
  };
  Saved cut_saved(SavedCutter& cutter, const Block& block, const Extent& extent) const;
  Saved saved_of(const Block& block, const BlockIo& io) const;
  Scratch scratch_of(const BlockIo& io) const;
  LayerOperators made_again(const Block& block) const;
  Scratch cut_scratch(RegionCutter& cutter, const Extent& extent) const;
  std::size_t operator_workspace(const Extent& extent) const;
  // Parameter `index` of what this rank has of a unit, as a view into its segment.
  TensorView parameter(const Block& block, std::size_t unit_of_block, std::size_t index, const BlockIo& io,
                       bool gradient) const;
  // Of the experts that live here; the first of them stands for the stack.
  MatrixStack expert_matrix(const Block& block, std::size_t index, const BlockIo& io, bool gradient) const;
  GroupedMlp::Weights mlp_weights(const Block& block, const BlockIo& io, bool gradient) const;
  TensorView head_matrix(const Block& block, const BlockIo& io, bool gradient) const;
  TensorView final_norm(const Block& block, const BlockIo& io, bool gradient) const;
  Attention::Inputs attention_inputs(const Block& block, const BlockIo& io, const Saved& saved) const;
  // Those of `operators` whose outputs backward needs; of the last, y too where `whole`.
  void attention_forward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved,
                         const Scratch& scratch, const TensorView& x, LayerOperators operators) const;
  void residual_forward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved,
                        const Scratch& scratch, const TensorView& x, LayerOperators operators) const;
  void mlp_forward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved, const Scratch& scratch,
                   LayerOperators operators, bool whole) const;
  void mlp_backward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved, const Scratch& scratch,
                    const TensorView& dy) const;
  // The experts of a MoE layer, chunk by chunk (decoder_experts.cpp).
  void experts_forward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved,
                       const Scratch& scratch) const;
  void experts_backward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved,
                        const Scratch& scratch, const TensorView& dy) const;
  ExpertExchange exchange(const Block& block, const BlockIo& io, const Saved& saved, const Scratch& scratch) const;
  Dispatched cut_dispatched(RegionCutter& cutter) const;
  void cut_chunks(SavedCutter& cutter, Saved& saved) const;
  std::size_t chunk_mlp_bytes() const;
  Chunk chunk(const Saved& saved, const Scratch& scratch, int index) const;
  Attention::Sizes attention_sizes(const Extent& e) const;
  GroupedMlp::Sizes dense_mlp_sizes(std::int64_t tokens) const { return {tokens, hidden_, dense_width_, 1}; }
  GroupedMlp::Sizes expert_mlp_sizes() const;

  const ParameterTable& table_;
  const Placement& placement_;
  MeshCoordinates at_;
  const OperatorSet& operators_;
  Experts& experts_;
  ExpertSizes sizes_;
  Recompute recompute_;
  int chunks_;
  std::int64_t capacity_;    // rows of a chunk at most
  std::size_t chunk_saved_;  // the role's bytes per chunk
  TensorView rope_cosine_, rope_sine_;
  std::int64_t hidden_, vocabulary_, query_heads_, key_heads_, head_dim_;
  std::int64_t expert_count_, k_, expert_width_, dense_width_;
  double eps_;
  RouterRule rule_;
  bool tied_, any_moe_ = false, any_dense_ = false;
};

}  // namespace ananke
