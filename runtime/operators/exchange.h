#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// One row of what travels, as bytes: values [H], then what some rows carry besides, each part and the whole a multiple
// of 16 bytes.
struct WireRow {
  enum class Extras {
    none,
    routing,   // f32 weights [k], i32 indices [k]
    dweights,  // f32 [k]
  };
  DType values;  // f32, or bf16 (rounded to nearest, ties to even)
  Extras extras;
  std::int64_t hidden, k;
  std::int64_t extras_begin() const { return aligned(hidden * static_cast<std::int64_t>(size_of(values))); }
  std::int64_t indices_begin() const { return extras_begin() + aligned(k * 4); }
  std::int64_t bytes() const {
    const std::int64_t parts = extras == Extras::none ? 0 : extras == Extras::routing ? 2 : 1;
    return extras_begin() + parts * aligned(k * 4);
  }

 private:
  static std::int64_t aligned(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }
};

// What is done to tokens before and after they travel between the R ranks that share out E experts; expert e is held by
// rank floor(e * R / E). A token has one *copy* for every rank that holds one of its k experts, not one per expert.
//
//   source rank                             rank that holds experts
//   plan: which copies there are
//   pack: copies by rank, then token   ──▶  expand: rows grouped by local expert
//                                           combine: per copy the weighted sum of its outputs, in expert order
//   collect: a token's sums, in rank   ◀──
//   order
//   pack: dy by rank, then token       ──▶  combine_backward: dy and weight of every row
//   collect: dx and dweights           ◀──  expand_backward: per copy the sum of its d_rows, in expert order
//
// All tensors but the plan's are those of one chunk of tokens. How many copies there are is known on the device only;
// wire tensors are u8 [capacity, WireRow::bytes()], of which the first rows are in use, and rows out of use are not
// touched. Sums are f32 in a fixed order: results are the same bits in every run.
class Exchange {
 public:
  struct Plan {
    TensorView indices;         // i32 [T, k], each in [0, E); no expert twice in one token
    std::int64_t experts;       // E
    std::int64_t chunk_tokens;  // tokens [c * chunk_tokens, (c + 1) * chunk_tokens) are chunk c
    TensorView copies;          // i32 [T, R]: the place of t's copy for rank p among its chunk's, -1: none
    TensorView counts;          // i32 [R, chunks]: how many copies chunk c has for rank p
  };
  // wire[copies[t, p]] = x[t], with weights[t] and indices[t] where rows carry the routing.
  struct Pack {
    TensorView x;                 // [T, H]
    TensorView copies;            // i32 [T, R]
    TensorView weights, indices;  // [T, k], i32 [T, k]; of rows with routing
    WireRow row;                  // routing or none
    TensorView wire;
  };
  // y[t] = sum over p of wire[copies[t, p]], in the order of p. Where rows carry dweights: dweights[t, j] from the row
  // of the rank that holds expert indices[t, j].
  struct Collect {
    TensorView wire;
    WireRow row;               // dweights or none
    TensorView copies;         // i32 [T, R]
    TensorView y;              // [T, H]
    TensorView indices;        // i32 [T, k]; of rows with dweights
    std::int64_t experts = 0;  // likewise
    TensorView dweights;       // [T, k], likewise
  };
  // What becomes of the N arrived copies. Entry m of a copy is the m-th of its local experts, ascending.
  struct Copies {
    TensorView count;    // i32 [1]: N
    TensorView rows;     // i32 [capacity, k]: the entry's row; -1 from the first entry that the copy does not have
    TensorView slots;    // i32 [capacity, k]: which of the token's choices it is
    TensorView weights;  // [capacity, k]
  };
  // rows[copies.rows[i, m]] = wire[i]: by local expert, then i.
  struct Expand {
    TensorView wire;
    WireRow row;                // routing
    TensorView arrived;         // i32 [R, chunks]: copies by source rank and chunk; they lie source by source
    std::int64_t chunk;         // which of them
    std::int64_t first_expert;  // of this rank; as many as offsets tells
    TensorView rows;            // [row capacity, H]
    TensorView offsets;         // i32 [local experts + 1]
    Copies copies;              // output
    Region workspace;
  };
  // wire[i] = sum over m of weights[i, m] * outputs[rows[i, m]]
  struct Combine {
    TensorView outputs;  // [row capacity, H]
    Copies copies;
    WireRow row;  // no extras
    TensorView wire;
  };
  // d_weighted[rows[i, m]] = dy[i] and row_weights[rows[i, m]] = weights[i, m]: the gradient of what is summed, weight
  // x output. Those of outputs and weights follow where the outputs were made (GroupedMlp::Backward).
  struct CombineBackward {
    TensorView wire;  // dy
    WireRow row;      // no extras
    Copies copies;
    TensorView d_weighted;   // [row capacity, H]
    TensorView row_weights;  // [row capacity]
  };
  // wire[i] = sum over m of d_rows[rows[i, m]], with d_row_weights[rows[i, m]] as dweights of slot slots[i, m], others
  // 0
  struct ExpandBackward {
    TensorView d_rows;         // [row capacity, H]
    TensorView d_row_weights;  // [row capacity]
    Copies copies;
    WireRow row;  // dweights
    TensorView wire;
  };
  virtual ~Exchange() = default;
  virtual std::size_t workspace(std::int64_t local_experts) const = 0;  // of expand
  virtual void plan(Stream& stream, const Plan& a) = 0;
  virtual void pack(Stream& stream, const Pack& a) = 0;
  virtual void collect(Stream& stream, const Collect& a) = 0;
  virtual void expand(Stream& stream, const Expand& a) = 0;
  virtual void combine(Stream& stream, const Combine& a) = 0;
  virtual void combine_backward(Stream& stream, const CombineBackward& a) = 0;
  virtual void expand_backward(Stream& stream, const ExpandBackward& a) = 0;
};

}  // namespace ananke
