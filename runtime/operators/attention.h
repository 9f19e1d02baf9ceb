#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// Where documents (segments) lie in T flat tokens: segment s is [offsets[s], offsets[s + 1]). Segments are not empty;
// offsets[0] = 0 and offsets[count] = T. Rows of a batch end segments too.
struct Segments {
  TensorView offsets;  // i32 [count + 1], device
  std::int64_t count = 0;
  std::int64_t longest = 0;
};

// Causal self-attention inside segments, with q/k RMSNorm per head and rotary positions (RoPE, Su et al. 2021, halves
// paired as in transformers' Llama and Qwen3: element i with i + D/2), grouped queries:
//   q' = rope(rms_norm(q) * q_norm), k' likewise;  o = softmax(q' k'^T / sqrt(D) + mask) v
// Query head h uses key/value head h / (Hq / Hkv).
class Attention {
 public:
  struct Sizes {
    std::int64_t tokens, query_heads, key_heads, head_dim, segments, longest;
  };
  struct Inputs {
    TensorView q;               // [T, Hq, D]
    TensorView k, v;            // [T, Hkv, D]
    TensorView q_norm, k_norm;  // [D]
    TensorView cosine, sine;    // [P, D / 2]: the one cache, shared by all layers; cos(p * theta^(-2i/D))
    TensorView positions;       // i32 [T], each in [0, P)
    Segments segments;
    double eps;  // of the norms
  };
  struct Forward {
    Inputs in;
    TensorView o;  // [T, Hq, D]
    Region saved, workspace;
  };
  struct Backward {
    Inputs in;
    TensorView o, d_o;            // [T, Hq, D]
    TensorView dq;                // [T, Hq, D]
    TensorView dk, dv;            // [T, Hkv, D]
    TensorView dq_norm, dk_norm;  // [D], added to
    Region saved, workspace;
  };
  virtual ~Attention() = default;
  virtual std::size_t saved(const Sizes& s) const = 0;
  virtual std::size_t workspace(const Sizes& s) const = 0;
  virtual void forward(Stream& stream, const Forward& a) = 0;
  virtual void backward(Stream& stream, const Backward& a) = 0;
};

}  // namespace ananke
