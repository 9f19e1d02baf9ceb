// The host's f32 numbers and what owners store of them (training.weights): f32, or bf16, rounded to nearest, of which
// every number is an f32 one.
#pragma once

#include <span>

#include "runtime/device/device.h"

namespace ananke {

// From f32 numbers to what is stored, which may begin where they do.
void narrow(std::span<const float> numbers, DType type, void* stored);
// From what is stored, which does not overlap the numbers.
void widen(const void* stored, DType type, std::span<float> numbers);

// As Device::read, of f32 or bf16.
void read_f32(Device& device, const TensorView& from, float* to);

}  // namespace ananke
