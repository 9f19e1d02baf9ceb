// Role "experts": brings token copies to the ranks that hold their experts, and results back.
//
//   start ─ connect ─ per layer and microbatch:
//   forward:   dispatch ─ (expert MLP over rows) ─ combine
//   backward:  combine_backward ─ (expert MLP backward) ─ dispatch_backward
//
// Only stream-ordered work. What must be kept between forward and backward lies in `saved`, of saved() bytes, one per
// layer and microbatch in flight. Built-in: local (every rank holds all experts while it computes).
#pragma once

#include "runtime/operators/operator_set.h"
#include "runtime/roles/context.h"
#include "runtime/roles/traffic.h"

namespace ananke {

struct ExpertSizes {
  std::int64_t tokens, hidden, experts, k;
};

struct Routing {
  TensorView indices;  // i32 [T, k]
  TensorView weights;  // f32 [T, k]
  TensorView counts;   // i32 [E]
};

struct ExpertRows {
  TensorView rows;     // [capacity, H]
  TensorView offsets;  // i32 [local experts + 1]
};

class Experts {
 public:
  static constexpr const char* role = "experts";
  virtual ~Experts() = default;
  // May tokens travel to the ranks of the expert axis? Without it a mesh has an expert axis of 1.
  virtual bool exchanges_tokens() const { return false; }
  // Before anything else: what the backend computes with. Outlives the role.
  virtual void start(const OperatorSet&) {}
  // The communicators are there. Before the first dispatch; sizes were asked before.
  virtual void connect(const StartContext&) {}
  virtual std::int64_t capacity(const ExpertSizes& s) const = 0;       // rows at most on this rank
  virtual std::int64_t local_experts(const ExpertSizes& s) const = 0;  // experts_of(own coordinate) of placement.h
  virtual std::size_t saved(const ExpertSizes& s) const = 0;           // bytes
  virtual std::size_t workspace(const ExpertSizes& s) const = 0;       // bytes
  // Fills `out`: rows grouped by local expert. offsets point into `saved`.
  virtual ExpertRows dispatch(Stream& stream, const TensorView& x, const Routing& routing, const TensorView& rows,
                              Region saved, Region workspace) = 0;
  // The offsets of an earlier dispatch, for the backward pass.
  virtual TensorView offsets(Region saved, const ExpertSizes& s) const = 0;
  // y[t] = sum of weight x expert output. `rows` are the experts' outputs.
  virtual void combine(Stream& stream, const TensorView& rows, const Routing& routing, const TensorView& y,
                       Region saved, Region workspace) = 0;
  virtual void combine_backward(Stream& stream, const TensorView& dy, const TensorView& rows, const Routing& routing,
                                const TensorView& drows, const TensorView& dweights, Region saved,
                                Region workspace) = 0;
  // dx[t] = sum over the token's copies.
  virtual void dispatch_backward(Stream& stream, const TensorView& drows, const Routing& routing, const TensorView& dx,
                                 Region saved, Region workspace) = 0;
  // What this rank received since start.
  virtual Traffic traffic() const { return {}; }
};

}  // namespace ananke
