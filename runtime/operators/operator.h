// What all operator contracts share.
//
// An operator is one computation: forward, backward, what it keeps between them (`saved`) and scratch (`workspace`).
// Sizes of both come first, as pure functions of the shape; the memory is passed in. Calls take views and a stream, put
// work on the stream and return: no allocation, no synchronisation, no host read. All tensors are contiguous; unless a
// contract says otherwise they are f32, inputs are left as they were, outputs do not overlap inputs, gradients of
// weights are *added* to what is there, and gradients of activations *replace* it. Every size may be 0. Activations and
// the matrices that they are multiplied with are all of one other type where the backend computes in it (arguments.h).
//
// `saved` and `workspace` are regions of at least the asked bytes, aligned to 256. Their content is the operator's own
// business, so a kernels plugin replaces forward and backward together or not at all.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/device/stream.h"
#include "runtime/tensor/tensor.h"

namespace ananke {

struct Region {
  void* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace ananke
