#include <algorithm>

#include "plugins/backend_cuda/operators/cudnn_attention.h"

namespace ananke::cuda {

namespace {

// Of the largest deterministic plan that is made for these sizes.
std::int64_t most_pairs_of(const Attention::Sizes& n) {
  using Cudnn = CudnnAttention;
  std::int64_t bytes = 0;
  for (std::int64_t batch = 1; Cudnn::pair_bytes(n, batch) <= Cudnn::most_pair_bytes; batch *= Cudnn::batch_step) {
    bytes = Cudnn::pair_bytes(n, batch);
    if (batch >= std::min(n.segments, Cudnn::most_documents)) break;
  }
  return bytes;
}

}  // namespace

RaggedScratch CudnnAttention::layout(Carve& carve, const Attention::Sizes& n, bool deterministic) {
  RaggedScratch scratch{};
  scratch.lengths = carve.take<std::int32_t>(most_documents);
  scratch.q = carve.take<std::int32_t>(most_documents + 1);
  scratch.k = carve.take<std::int32_t>(most_documents + 1);
  scratch.log_sum = carve.take<std::int32_t>(most_documents + 1);
  // Of the backward pass, all f32 and of each query head: dq, and dk and dv where heads share keys; sums of rows.
  const std::int64_t rows = planned_tokens(n.tokens) * n.query_heads, copies = n.query_heads == n.key_heads ? 1 : 3;
  constexpr std::int64_t of_its_own = std::int64_t{32} << 20;  // what cuDNN's kernels take beyond
  const std::int64_t bytes = 4 * rows * (copies * n.head_dim + 1) + of_its_own + (deterministic ? most_pairs_of(n) : 0);
  constexpr std::int64_t alignment = 256;  // finer than a carve's
  scratch.workspace = carve.take<std::byte>(bytes + alignment);
  if (scratch.workspace) {
    const auto place = reinterpret_cast<std::uintptr_t>(scratch.workspace);
    scratch.workspace += (alignment - place % alignment) % alignment;
  }
  scratch.workspace_bytes = static_cast<std::size_t>(bytes);
  return scratch;
}

}  // namespace ananke::cuda
