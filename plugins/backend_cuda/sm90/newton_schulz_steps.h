// Steps of Newton-Schulz iterations by a kernel for compute capability 9.0 (H100, H200, GH200), which computes each
// symmetric product's lower triangle alone: bf16 factors, f32 sums. The same bits in every run.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>

#include "plugins/backend_cuda/operators/device_facts.h"
#include "plugins/backend_cuda/sm90/tensor_maps.h"

namespace ananke::cuda::sm90 {

class NewtonSchulzSteps {
 public:
  // A batch of matrices, all in device memory, bf16, one behind the other; addresses are multiples of 16 bytes.
  struct Batch {
    std::int64_t count, s, l;  // of X [s, l]
    void *x, *y;               // [count, s, l]: X, and memory for another
    void *a, *b;               // [count, s, s]
    int* progress;             // [progress_ints(count)]
  };
  static constexpr std::int64_t progress_ints(std::int64_t count) { return 1 + count; }

  // On the current device. On one that is not of compute capability 9.0, and where `facts` are those expected, nothing
  // is taken.
  explicit NewtonSchulzSteps(const DeviceFacts& facts);

  // Whether the kernel takes matrices [s, l]: multiples of 8, s <= l.
  bool take(std::int64_t s, std::int64_t l) const;
  // Whether it is faster than a library's products. Of the shape alone: what a matrix becomes must not depend on how
  // many there are.
  bool faster(std::int64_t s, std::int64_t l) const;

  // `steps` times A = X X^T, B = b A + c A A, X = a X + B X, each rounded to bf16. The last X is in `x` where `steps`
  // is even, else in `y`; A and B, exactly symmetric, are those of the last step. Memory may hold anything before.
  void run(cudaStream_t stream, const Batch& batch, int steps, double a, double b, double c) const;

 private:
  const int blocks_;  // 0: not this device
  std::optional<TensorMaps> maps_;
};

}  // namespace ananke::cuda::sm90
