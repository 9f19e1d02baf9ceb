// Matrix products by cuBLASLt: f32 in f32 (never TF32), bf16 with f32 sums.
//
// The algorithm is chosen once for each shape by cuBLASLt's heuristic and kept, so a shape always gives the same bits;
// partial sums of a split product are added in f32 in a fixed order.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "plugins/backend_cuda/operators/device_facts.h"
#include "plugins/backend_cuda/operators/stream_slots.h"
#include "runtime/tensor/tensor.h"

namespace ananke::cuda {

// A factor as it lies in memory, row-major, `stride` elements from row to row; `transposed`: used as its transpose.
struct Factor {
  const void* data;
  std::int64_t stride;
  bool transposed = false;
  std::int64_t batch_stride = 0;  // elements from one product's factor to the next one's
};

// out[m, n] = alpha a[m, k] b[k, n] + beta add. With beta 0, what was in `out` has no effect, NaN neither.
struct Product {
  std::int64_t m, n, k;
  Factor a, b;
  DType in;  // of both factors: f32 or bf16
  void* out;
  std::int64_t out_stride;
  DType out_type;  // f32, or bf16 where `in` is
  float alpha = 1, beta = 0;
  const void* add = nullptr;  // type and stride of `out`; null: what is in `out`
  // Batches: `count` products, the algorithm chosen as if there were `tuned_count`, so that what a product gives does
  // not depend on how many there are.
  std::int64_t count = 1, tuned_count = 1, out_batch_stride = 0;
  // Which size is a number of rows that differs from call to call: its algorithms are chosen for rounded sizes, and are
  // few.
  enum class Ragged { none, m, k } ragged = Ragged::none;
};

class Products {
 public:
  // On the current device; sizes only, without CUDA, where `facts` are those expected.
  Products(const DeviceFacts& facts, Arena& memory);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Puts the product on the stream. Thread-safe.
  void run(cudaStream_t stream, const Product& product);

 private:
  struct Key {
    std::int64_t m, n, k, a_stride, b_stride, out_stride, count;
    int a_alignment, b_alignment, out_alignment, add_alignment;  // bytes
    int kind;                                                    // types and transpositions
    int padding = 0;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  static Key key_of(const Product& product, bool rounded);
  const cublasLtMatmulAlgo_t& algorithm(const Product& product, const Key& key);

  const int device_;
  cublasLtHandle_t handle_ = nullptr;
  StreamSlots workspace_;
  std::mutex mutex_;
  std::unordered_map<Key, cublasLtMatmulAlgo_t, Hash> algorithms_;
};

}  // namespace ananke::cuda
