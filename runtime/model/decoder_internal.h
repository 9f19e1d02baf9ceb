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

// What the experts make of it.
struct Decoder::Computed {
  TensorView outputs;  // [capacity, H]
  Region mlp;
};

struct Decoder::Chunk {
  ExpertChunk exchange;
  Region mlp;
};

// Kept from a block's forward to its backward.
struct Decoder::Saved {
  TensorView n1, q, k, v, o, h, n2;  // a layer; the head uses n1 only
  Region norm1, norm2, attention;
  Region mlp;                                  // dense layers
  TensorView routing_weights, routing_counts;  // MoE layers
  Region router, exchange;
  Region dispatched, computed;  // as many chunks as are there at once, one behind the other (decoder_experts.cpp)
};

struct Decoder::Scratch {
  TensorView a, b;               // [T, H]
  TensorView d_o, dq, dk, dv;    // gradients around attention
  TensorView d_outputs, d_rows;  // [capacity, H]
  TensorView d_weights;          // [T, k]
  Region operators;              // the largest operator's workspace
};

}  // namespace ananke
