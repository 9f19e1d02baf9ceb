#include "plugins/backend_cuda/sm90/tensor_maps.h"

#include <cuda_runtime_api.h>

#include <limits>

#include "plugins/backend_cuda/check.h"
#include "runtime/base/error.h"

namespace ananke::cuda::sm90 {
namespace {

constexpr int since = 12000;  // CUDA's version with the function, by whose signature it is called

}  // namespace

bool can_be_mapped(const Matrices& m) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const auto size = static_cast<std::int64_t>(size_of(m.dtype));
  const auto fits = [&](std::int64_t stride) {
    return stride * size % 16 == 0 && stride * size < std::int64_t{1} << 40;
  };
  return m.rows > 0 && m.rows <= most && m.columns > 0 && m.columns <= most && m.count > 0 && m.count <= most &&
         reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && fits(m.stride) &&
         (m.count == 1 || fits(m.matrix_stride));
}

TensorMaps::TensorMaps() {
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode_, since, cudaEnableDefault, &found),
        "ask the driver for cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess || !encode_) {
    fail(ErrorKind::config,
         "the CUDA driver has no cuTensorMapEncodeTiled, which the kernels for sm_90 need: update it");
  }
}

CUtensorMap TensorMaps::of(const Matrices& m, int box_rows) const {
  ANANKE_CHECK(can_be_mapped(m), "{} matrices [{}, {}] of {}, {} and {} elements apart, cannot be mapped", m.count,
               m.rows, m.columns, name_of(m.dtype), m.stride, m.matrix_stride);
  const auto size = static_cast<cuuint64_t>(size_of(m.dtype));
  const auto stride = static_cast<cuuint64_t>(m.stride) * size;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(m.columns), static_cast<cuuint64_t>(m.rows),
                              static_cast<cuuint64_t>(m.count)};
  const cuuint64_t strides[] = {stride, m.count == 1 ? stride : static_cast<cuuint64_t>(m.matrix_stride) * size};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(128 / size), static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map{};
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode_);
  const CUresult result =
      encode(&map, m.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3,
             m.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  ANANKE_CHECK(result == CUDA_SUCCESS,
               "the driver does not map {} matrices [{}, {}] of {}, {} and {} elements apart: error {}", m.count,
               m.rows, m.columns, name_of(m.dtype), m.stride, m.matrix_stride, static_cast<int>(result));
  return map;
}

}  // namespace ananke::cuda::sm90
