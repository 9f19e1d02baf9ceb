// Descriptions of tensors for the copy engine of compute capability 9.0 (TMA), made on the host.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "runtime/tensor/tensor.h"

namespace ananke::cuda::sm90 {

// Matrices of one shape in device memory, row-major; strides in elements.
struct Matrices {
  void* data = nullptr;
  DType dtype = DType::bf16;  // or f32
  std::int64_t rows = 0, columns = 0;
  std::int64_t stride = 0;                    // from row to row
  std::int64_t count = 1, matrix_stride = 0;  // from matrix to matrix
};

// Whether the copy engine takes them: not empty, sizes below 2^31, address and strides multiples of 16 bytes.
bool can_be_mapped(const Matrices& m);

class TensorMaps {
 public:
  TensorMaps();  // Error(config) where the driver cannot make maps
  // Boxes of `box_rows` rows and 128 bytes of columns, which lie swizzled in shared memory (wgmma.cuh). Coordinates:
  // column, row, matrix. Outside there are zeros.
  CUtensorMap of(const Matrices& m, int box_rows) const;

 private:
  void* encode_ = nullptr;
};

}  // namespace ananke::cuda::sm90
