// What a job computes in.
#pragma once

#include "ananke/job.pb.h"
#include "runtime/tensor/tensor.h"

namespace ananke {

// Of activations, and of the weights that they are multiplied with (training.compute).
inline DType compute_type(const Job& job) {
  return job.training().compute() == Training::BF16 ? DType::bf16 : DType::f32;
}

}  // namespace ananke
