// Which element types a call is about, for host code.
#pragma once

#include "runtime/tensor/tensor.h"

namespace ananke::cuda {

// What a call computes in: the type of one of its activations. Another type than f32 and bf16 gives f32, so that the
// check of the arguments refuses it.
inline DType elements_of(const TensorView& view) { return view.dtype == DType::bf16 ? DType::bf16 : DType::f32; }

}  // namespace ananke::cuda
