#include "runtime/model/decoder.h"

#include <algorithm>
#include <utility>

#include "ananke/model.pb.h"
#include "runtime/model/decoder_internal.h"

namespace ananke {

Decoder::Decoder(const Model& model, const ParameterTable& table, const Placement& placement, const MeshCoordinates& at,
                 const OperatorSet& operators, Experts& experts, const ExpertSizes& sizes, Recompute recompute,
                 const RouterRule& rule, TensorView rope_cosine, TensorView rope_sine)
    : table_(table),
      placement_(placement),
      at_(at),
      operators_(operators),
      experts_(experts),
      sizes_(sizes),
      recompute_(std::move(recompute)),
      chunks_(experts.chunks()),
      capacity_(experts.capacity(sizes)),
      chunk_saved_(experts.chunk_saved(sizes)),
      rope_cosine_(rope_cosine),
      rope_sine_(rope_sine),
      hidden_(model.hidden_size()),
      vocabulary_(model.vocab_size()),
      query_heads_(model.num_attention_heads()),
      key_heads_(model.num_key_value_heads()),
      head_dim_(model.head_dim()),
      expert_count_(model.num_experts()),
      k_(model.num_experts_per_tok()),
      expert_width_(model.moe_intermediate_size()),
      dense_width_(model.intermediate_size()),
      eps_(model.rms_norm_eps()),
      rule_(rule),
      tied_(model.tie_word_embeddings()) {
  for (const Block& block : table.blocks()) {
    if (block.kind != BlockKind::layer) continue;
    (block.moe ? any_moe_ : any_dense_) = true;
  }
}

Attention::Sizes Decoder::attention_sizes(const Extent& e) const {
  return {e.tokens, query_heads_, key_heads_, head_dim_, e.segments, e.longest};
}

// The head's backward follows its forward at once.
LayerOperators Decoder::made_again(const Block& block) const {
  return block.kind == BlockKind::layer ? recompute_.of(block.layer) : LayerOperators::all();
}

Decoder::Saved Decoder::cut_saved(SavedCutter& cutter, const Block& block, const Extent& extent) const {
  using enum LayerOperator;
  const std::int64_t t = extent.tokens;
  Saved saved;
  saved.again = cutter.again = made_again(block);
  const auto activation = [&](LayerOperator of, std::int64_t width) {
    return cutter.of(of).tensor(sizes_.compute, {t, width});
  };
  if (block.kind == BlockKind::embedding) return saved;
  saved.norm1 = cutter.of(norms).region(operators_.add_rms_norm->saved({t, hidden_}));
  saved.n1 = activation(norms, hidden_);
  if (block.kind == BlockKind::head) return saved;
  saved.q = activation(projections, query_heads_ * head_dim_);
  saved.k = activation(projections, key_heads_ * head_dim_);
  saved.v = activation(projections, key_heads_ * head_dim_);
  saved.attention = cutter.of(attention).region(operators_.attention->saved(attention_sizes(extent)));
  saved.o = activation(attention, query_heads_ * head_dim_);
  saved.h = activation(residual, hidden_);
  saved.norm2 = cutter.of(norms).region(operators_.add_rms_norm->saved({t, hidden_}));
  saved.n2 = activation(norms, hidden_);
  if (!block.moe) {
    saved.mlp = cutter.of(grouped_mlp).region(operators_.grouped_mlp->saved(dense_mlp_sizes(t)));
    return saved;
  }
  saved.router = cutter.of(router).region(operators_.router->saved({t, hidden_, expert_count_, k_}));
  saved.routing_weights = cutter.of(router).tensor(DType::f32, {t, k_});
  saved.routing_counts = cutter.of(router).tensor(DType::i32, {expert_count_});
  cut_chunks(cutter, saved);
  return saved;
}

Decoder::Saved Decoder::saved_of(const Block& block, const BlockIo& io) const {
  SavedCutter cutter{RegionCutter(io.kept), RegionCutter(io.made_again), {}};
  return cut_saved(cutter, block, {io.batch.tokens, io.batch.segments.count, io.batch.segments.longest});
}

Decoder::Scratch Decoder::scratch_of(const BlockIo& io) const {
  RegionCutter cutter(io.workspace);
  return cut_scratch(cutter, {io.batch.tokens, io.batch.segments.count, io.batch.segments.longest});
}

Decoder::Scratch Decoder::cut_scratch(RegionCutter& cutter, const Extent& extent) const {
  const std::int64_t t = extent.tokens;
  const auto activation = [&](std::int64_t width) { return cutter.tensor(sizes_.compute, {t, width}); };
  Scratch scratch;
  scratch.a = activation(hidden_);
  scratch.b = activation(hidden_);
  scratch.d_o = activation(query_heads_ * head_dim_);
  scratch.dq = activation(query_heads_ * head_dim_);
  scratch.dk = activation(key_heads_ * head_dim_);
  scratch.dv = activation(key_heads_ * head_dim_);
  if (any_moe_) {
    scratch.outputs = cutter.tensor(sizes_.compute, {capacity_, hidden_});
    scratch.d_rows = cutter.tensor(sizes_.compute, {capacity_, hidden_});
    scratch.row_weights = cutter.tensor(DType::f32, {capacity_});
    scratch.d_row_weights = cutter.tensor(DType::f32, {capacity_});
    scratch.d_weights = cutter.tensor(DType::f32, {t, k_});
  }
  scratch.operators = cutter.region(operator_workspace(extent));
  return scratch;
}

std::size_t Decoder::operator_workspace(const Extent& extent) const {
  const std::int64_t t = extent.tokens;
  std::size_t most = std::max(operators_.add_rms_norm->workspace({t, hidden_}),
                              operators_.attention->workspace(attention_sizes(extent)));
  most = std::max(most, operators_.head_loss->workspace({t, hidden_, vocabulary_}));
  if (any_dense_) most = std::max(most, operators_.grouped_mlp->workspace(dense_mlp_sizes(t)));
  if (any_moe_) {
    most = std::max(most, operators_.router->workspace({t, hidden_, expert_count_, k_}));
    most = std::max(most, experts_.workspace(sizes_));
    most = std::max(most, operators_.grouped_mlp->workspace(expert_mlp_sizes()));
  }
  return most;
}

Decoder::SavedBytes Decoder::saved_bytes(const Block& block, std::int64_t tokens, std::int64_t segments,
                                         std::int64_t longest) const {
  SavedCutter cutter;
  cut_saved(cutter, block, {tokens, segments, longest});
  return {cutter.kept.used(), cutter.made_again.used()};
}

std::size_t Decoder::workspace_bytes(std::int64_t tokens, std::int64_t segments, std::int64_t longest) const {
  RegionCutter cutter;
  cut_scratch(cutter, {tokens, segments, longest});
  return cutter.used();
}

TensorView Decoder::parameter(const Block& block, std::size_t unit_of_block, std::size_t index, const BlockIo& io,
                              bool gradient) const {
  const int unit = block.units.at(unit_of_block);
  const UnitPlacement& place = placement_.unit(unit, at_);
  const UnitViews& views = io.units[unit_of_block];
  const SegmentViews& segments = gradient ? views.gradient : views.weights;
  const int global = table_.units()[static_cast<std::size_t>(unit)].parameters.at(place.first_parameter + index);
  const Parameter& what = table_.parameters()[static_cast<std::size_t>(global)];
  ANANKE_CHECK(segments, "{} of {} is not there", gradient ? "gradient" : "weight", what.name);
  return segments[segment_of(what.kind)].slice(place.offset.at(index), what.shape.elements()).reshaped(what.shape);
}

void Decoder::embed(Stream& stream, const BlockIo& io, const TensorView& y) const {
  const Block& block = table_.blocks().front();
  operators_.embedding->forward(stream, {io.batch.ids, parameter(block, 0, 0, io, false), y});
}

void Decoder::embed_backward(Stream& stream, const BlockIo& io, const TensorView& dy) const {
  const Block& block = table_.blocks().front();
  operators_.embedding->backward(stream, {io.batch.ids, dy, parameter(block, 0, 0, io, true)});
}

// Untied: unit `head` = {norm, matrix}. Tied: units {embedding, head}, head = {norm}.
TensorView Decoder::head_matrix(const Block& block, const BlockIo& io, bool gradient) const {
  return tied_ ? parameter(block, 0, 0, io, gradient) : parameter(block, 0, 1, io, gradient);
}

TensorView Decoder::final_norm(const Block& block, const BlockIo& io, bool gradient) const {
  return parameter(block, tied_ ? 1 : 0, 0, io, gradient);
}

void Decoder::head_forward(Stream& stream, const Block& block, const BlockIo& io, const TensorView& x,
                           const HeadOutput& out) const {
  const Saved saved = saved_of(block, io);
  const Scratch scratch = scratch_of(io);
  operators_.add_rms_norm->forward(
      stream, {x, {}, final_norm(block, io, false), {}, saved.n1, eps_, saved.norm1, scratch.operators});
  operators_.head_loss->forward(
      stream, {saved.n1, head_matrix(block, io, false), io.batch.targets, out.loss, out.logits, scratch.operators});
}

void Decoder::head_forward_backward(Stream& stream, const Block& block, const BlockIo& io, const TensorView& x,
                                    const HeadOutput& out, const TensorView& dx) const {
  const Saved saved = saved_of(block, io);
  const Scratch scratch = scratch_of(io);
  const TensorView norm = final_norm(block, io, false);
  operators_.add_rms_norm->forward(stream, {x, {}, norm, {}, saved.n1, eps_, saved.norm1, scratch.operators});
  operators_.head_loss->forward_backward(
      stream, {saved.n1, head_matrix(block, io, false), io.batch.targets, out.loss, out.scale, scratch.a,
               head_matrix(block, io, true), out.logits, scratch.operators});
  operators_.add_rms_norm->backward(
      stream, {x, norm, scratch.a, {}, dx, final_norm(block, io, true), eps_, saved.norm1, scratch.operators});
}

}  // namespace ananke
