// What a job computes in, and what owners store.
#pragma once

#include "ananke/job.pb.h"
#include "runtime/comm/placement.h"
#include "runtime/tensor/tensor.h"

namespace ananke {

inline DType type_of(Training::Compute compute) { return compute == Training::BF16 ? DType::bf16 : DType::f32; }

// Of activations, and of the weights that they are multiplied with (training.compute).
inline DType compute_type(const Job& job) { return type_of(job.training().compute()); }

// Of what owners store of wire segments: weights, gradients and optimizer states (training.weights). fp32 segments are
// f32.
inline DType stored_type(const Job& job) { return type_of(job.training().weights()); }
inline DType stored_type(ParameterKind kind, DType wire) {
  return segment_of(kind) == UnitSegment::wire ? wire : DType::f32;
}

}  // namespace ananke
