#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/operators/cudnn_attention.h"
#include "plugins/backend_cuda/operators/elements.cuh"

namespace ananke::cuda {
namespace {

constexpr int threads = 128;

// A thread per place of the batch, and one behind the last.
__global__ void ragged_kernel(std::int64_t batch, Attention::Sizes n, const std::int32_t* offsets,
                              const std::int32_t* valid, RaggedScratch out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i > batch) return;
  const bool good = *valid != 0;
  const std::int64_t at = good ? offsets[min(i, n.segments)] : 0;
  out.q[i] = static_cast<std::int32_t>(at * n.query_heads * n.head_dim);
  out.k[i] = static_cast<std::int32_t>(at * n.key_heads * n.head_dim);
  out.log_sum[i] = static_cast<std::int32_t>(at * n.query_heads);
  if (i < batch) out.lengths[i] = good && i < n.segments ? offsets[i + 1] - static_cast<std::int32_t>(at) : 0;
}

}  // namespace

void fill_ragged(const RaggedCall& call, std::int64_t batch) {
  ragged_kernel<<<static_cast<unsigned>(blocks_for(batch + 1, threads)), threads, 0, call.stream>>>(
      batch, call.n, call.offsets, call.valid, call.scratch);
  ANANKE_CUDA_LAUNCHED("attention: ragged offsets");
}

}  // namespace ananke::cuda
