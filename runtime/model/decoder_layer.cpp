// One decoder layer: attention and MLP, forward and backward.
#include "runtime/model/decoder_internal.h"

namespace ananke {

MatrixStack Decoder::expert_matrix(const Block& block, std::size_t index, const BlockIo& io, bool gradient) const {
  const UnitPlacement& place = placement_.unit(block.units[1], at_);
  if (place.experts.count > 0) return {parameter(block, 1, index, io, gradient), place.expert_stride};
  const Shape shape = index == expert_down ? Shape{hidden_, expert_width_} : Shape{expert_width_, hidden_};
  return {{nullptr, gradient ? DType::f32 : sizes_.compute, shape}, 0};  // a stack of none
}

GroupedMlp::Weights Decoder::mlp_weights(const Block& block, const BlockIo& io, bool gradient) const {
  if (block.moe) {
    return {expert_matrix(block, expert_gate, io, gradient), expert_matrix(block, expert_up, io, gradient),
            expert_matrix(block, expert_down, io, gradient)};
  }
  return {{parameter(block, 0, mlp_gate, io, gradient), 0},
          {parameter(block, 0, mlp_up, io, gradient), 0},
          {parameter(block, 0, mlp_down, io, gradient), 0}};
}

Attention::Inputs Decoder::attention_inputs(const Block& block, const BlockIo& io, const Saved& saved) const {
  const std::int64_t t = io.batch.tokens;
  return {saved.q.reshaped({t, query_heads_, head_dim_}),
          saved.k.reshaped({t, key_heads_, head_dim_}),
          saved.v.reshaped({t, key_heads_, head_dim_}),
          parameter(block, 0, q_norm, io, false),
          parameter(block, 0, k_norm, io, false),
          rope_cosine_,
          rope_sine_,
          io.batch.positions,
          io.batch.segments,
          eps_};
}

// Result in scratch.a, where `whole`.
void Decoder::mlp_forward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved,
                          const Scratch& scratch, LayerOperators operators, bool whole) const {
  if (!block.moe) {
    const std::int64_t offsets[] = {0, io.batch.tokens};
    if (!operators.has(LayerOperator::grouped_mlp)) return;
    operators_.grouped_mlp->forward(stream, {saved.n2, io.batch.whole, mlp_weights(block, io, false),
                                             whole ? scratch.a : TensorView{}, saved.mlp, scratch.operators, offsets});
    return;
  }
  if (operators.has(LayerOperator::router)) {
    operators_.router->forward(stream, {.x = saved.n2,
                                        .gate = parameter(block, 0, router_gate, io, false),
                                        .bias = io.routing.bias,
                                        .rule = rule_,
                                        .replay = io.routing.decided,
                                        .indices = io.routing.indices,
                                        .weights = saved.routing_weights,
                                        .counts = saved.routing_counts,
                                        .statistics = io.routing.statistics,
                                        .saved = saved.router,
                                        .workspace = scratch.operators});
  }
  if (whole) experts_forward(stream, block, io, saved, scratch);
}

// dn2 into scratch.b.
void Decoder::mlp_backward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved,
                           const Scratch& scratch, const TensorView& dy) const {
  if (!block.moe) {
    const std::int64_t offsets[] = {0, io.batch.tokens};
    operators_.grouped_mlp->backward(stream, {saved.n2, io.batch.whole, mlp_weights(block, io, false), dy, scratch.b,
                                              mlp_weights(block, io, true), saved.mlp, scratch.operators, offsets});
    return;
  }
  experts_backward(stream, block, io, saved, scratch, dy);
  operators_.router->backward(stream, {.x = saved.n2,
                                       .gate = parameter(block, 0, router_gate, io, false),
                                       .rule = rule_,
                                       .indices = io.routing.indices,
                                       .weights = saved.routing_weights,
                                       .dweights = scratch.d_weights,
                                       .factors = io.routing.factors,
                                       .dx = scratch.b,
                                       .dgate = parameter(block, 0, router_gate, io, true),
                                       .saved = saved.router,
                                       .workspace = scratch.operators});
}

void Decoder::attention_forward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved,
                                const Scratch& scratch, const TensorView& x, LayerOperators operators) const {
  const auto weight = [&](std::size_t index) { return parameter(block, 0, index, io, false); };
  if (operators.has(LayerOperator::norms)) {
    operators_.add_rms_norm->forward(stream,
                                     {x, {}, weight(input_norm), {}, saved.n1, eps_, saved.norm1, scratch.operators});
  }
  if (operators.has(LayerOperator::projections)) {
    operators_.linear->forward(stream, {saved.n1, weight(q_proj), saved.q});
    operators_.linear->forward(stream, {saved.n1, weight(k_proj), saved.k});
    operators_.linear->forward(stream, {saved.n1, weight(v_proj), saved.v});
  }
  if (operators.has(LayerOperator::attention)) {
    operators_.attention->forward(
        stream, {attention_inputs(block, io, saved), saved.o.reshaped({io.batch.tokens, query_heads_, head_dim_}),
                 saved.attention, scratch.operators});
  }
}

// h and n2; n2 alone follows from h, to the same bits (operators/add_rms_norm.h).
void Decoder::residual_forward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved,
                               const Scratch& scratch, const TensorView& x, LayerOperators operators) const {
  const bool sum = operators.has(LayerOperator::residual), norm = operators.has(LayerOperator::norms);
  const TensorView weight = parameter(block, 0, post_norm, io, false);
  if (sum) operators_.linear->forward(stream, {saved.o, parameter(block, 0, o_proj, io, false), scratch.a});
  if (sum && norm) {
    operators_.add_rms_norm->forward(stream,
                                     {x, scratch.a, weight, saved.h, saved.n2, eps_, saved.norm2, scratch.operators});
  } else if (sum) {
    operators_.elementwise->add(stream, x, scratch.a, saved.h);
  } else if (norm) {
    operators_.add_rms_norm->forward(stream, {saved.h, {}, weight, {}, saved.n2, eps_, saved.norm2, scratch.operators});
  }
}

void Decoder::layer_forward(Stream& stream, const Block& block, const BlockIo& io, const TensorView& x,
                            const TensorView& y) const {
  const Saved saved = saved_of(block, io);
  const Scratch scratch = scratch_of(io);
  const LayerOperators all = LayerOperators::all();
  attention_forward(stream, block, io, saved, scratch, x, all);
  residual_forward(stream, block, io, saved, scratch, x, all);
  mlp_forward(stream, block, io, saved, scratch, all, true);
  operators_.elementwise->add(stream, saved.h, scratch.a, y);
}

void Decoder::layer_again(Stream& stream, const Block& block, const BlockIo& io, const TensorView& x) const {
  const Saved saved = saved_of(block, io);
  if (saved.again.none()) return;
  const Scratch scratch = scratch_of(io);
  attention_forward(stream, block, io, saved, scratch, x, saved.again);
  residual_forward(stream, block, io, saved, scratch, x, saved.again);
  mlp_forward(stream, block, io, saved, scratch, saved.again, false);
}

void Decoder::layer_backward(Stream& stream, const Block& block, const BlockIo& io, const TensorView& x,
                             const TensorView& gradient) const {
  const Saved saved = saved_of(block, io);
  const Scratch scratch = scratch_of(io);
  const std::int64_t t = io.batch.tokens;
  const auto weight = [&](std::size_t index) { return parameter(block, 0, index, io, false); };
  const auto d_weight = [&](std::size_t index) { return parameter(block, 0, index, io, true); };

  mlp_backward(stream, block, io, saved, scratch, gradient);
  operators_.add_rms_norm->backward(stream, {saved.h, weight(post_norm), scratch.b, gradient, gradient,
                                             d_weight(post_norm), eps_, saved.norm2, scratch.operators});
  operators_.linear->backward(stream, {saved.o, weight(o_proj), gradient, scratch.d_o, false, d_weight(o_proj)});
  const Shape query{t, query_heads_, head_dim_}, key{t, key_heads_, head_dim_};
  operators_.attention->backward(
      stream, {attention_inputs(block, io, saved), saved.o.reshaped(query), scratch.d_o.reshaped(query),
               scratch.dq.reshaped(query), scratch.dk.reshaped(key), scratch.dv.reshaped(key), d_weight(q_norm),
               d_weight(k_norm), saved.attention, scratch.operators});
  operators_.linear->backward(stream, {saved.n1, weight(q_proj), scratch.dq, scratch.a, false, d_weight(q_proj)});
  operators_.linear->backward(stream, {saved.n1, weight(k_proj), scratch.dk, scratch.a, true, d_weight(k_proj)});
  operators_.linear->backward(stream, {saved.n1, weight(v_proj), scratch.dv, scratch.a, true, d_weight(v_proj)});
  operators_.add_rms_norm->backward(stream, {x, weight(input_norm), scratch.a, gradient, gradient, d_weight(input_norm),
                                             eps_, saved.norm1, scratch.operators});
}

}  // namespace ananke
