// Sums and maxima of equal-sized arrays, always in the order given: the same bits whoever computes them, and for any
// way of cutting the arrays.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/comm/communicator.h"
#include "runtime/tensor/tensor.h"

namespace ananke {

// out[i] = ((parts[0][i] op parts[1][i]) op parts[2][i]) ... f32, f64 and i64 (sums wrap around), else Error(internal).
// A maximum with a NaN among its terms is NaN. `out` may not overlap a part. At least one part.
void reduce_in_order(DType dtype, Reduction reduction, std::span<const void* const> parts, void* out,
                     std::int64_t count);
// out[i] = 0 + parts[0][i] + parts[1][i] + ... of bf16, in f32; `add`: that is added to out[i].
void sum_bf16_in_order(std::span<const void* const> parts, float* out, std::int64_t count, bool add);

}  // namespace ananke
