// How the decoder's saved and scratch regions are laid out, and where parameters stand within their unit.
#pragma once

#include "runtime/model/decoder.h"
#include "runtime/model/region_cutter.h"

namespace ananke {

// Order of parameters within `layer.N.dense` (parameter_table.cpp adds them so).
enum DenseParameter : std::size_t {
  input_norm,
  q_proj,
  k_proj,
  v_proj,
  o_proj,
  q_norm,
  k_norm,
  post_norm,
  router_gate,             // MoE layers
  mlp_gate = router_gate,  // dense layers
  mlp_up,
  mlp_down
};
// Order within one expert of `layer.N.experts`.
enum ExpertParameter : std::size_t { expert_gate, expert_up, expert_down };

// What dispatch makes of one chunk.
struct Decoder::Dispatched {
  TensorView rows, offsets;  // [capacity, H], [local experts + 1]
  Region saved;
};

struct Decoder::Chunk {
  ExpertChunk exchange;
  Region mlp;
};

// What a block's backward needs of its forward, each part where it is kept, or where it is made again.
struct Decoder::Saved {
  LayerOperators again;              // of these operators it is made again
  TensorView n1, q, k, v, o, h, n2;  // a layer; the head uses n1 only
  Region norm1, norm2, attention;
  Region mlp;  // dense layers; of MoE layers as many chunks as are there at once, one behind the other
  TensorView routing_weights, routing_counts;  // MoE layers
  Region router, exchange;
  Region dispatched;  // as many chunks as are there at once, likewise (decoder_experts.cpp)
};

// Cuts the two regions that a block's backward needs.
struct Decoder::SavedCutter {
  RegionCutter kept, made_again;
  LayerOperators again;
  RegionCutter& of(LayerOperator one) { return again.has(one) ? made_again : kept; }
};

struct Decoder::Scratch {
  TensorView a, b;                        // [T, H]
  TensorView d_o, dq, dk, dv;             // gradients around attention
  TensorView outputs, d_rows;             // [capacity, H]; a backward's d_weighted lies where outputs do
  TensorView row_weights, d_row_weights;  // f32 [capacity]
  TensorView d_weights;                   // [T, k]
  Region operators;                       // the largest operator's workspace
};

}  // namespace ananke
