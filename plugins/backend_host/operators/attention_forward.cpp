#include <cmath>
#include <cstring>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/attention.h"
#include "plugins/backend_host/operators/attention_parts.h"
#include "plugins/backend_host/operators/gemm.h"
#include "plugins/backend_host/operators/row_math.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/validate.h"

namespace ananke::host {
namespace {

// Outputs of one block of queries of one head.
void forward_block(const Attention::Inputs& in, const Attention::Sizes& n, const AttentionSaved& saved,
                   const AttentionScratch& scratch, const QueryBlock& block, std::int64_t head, float* scores,
                   float* o) {
  const std::int64_t kv = head / (n.query_heads / n.key_heads), dim = n.head_dim;
  const std::int64_t q_stride = n.query_heads * dim, k_stride = n.key_heads * dim;
  const std::int64_t rows = block.end - block.begin, keys = block.end - block.first_key;
  const std::int64_t first_key = block.first_key * k_stride + kv * dim;
  const std::int64_t first_query = block.begin * q_stride + head * dim;
  gemm(rows, keys, dim, 1 / std::sqrt(static_cast<float>(dim)), {scratch.q + first_query, q_stride},
       {scratch.k + first_key, k_stride, true}, 0, scores, keys);
  float inverse_sum[queries_per_block];
  for (std::int64_t i = 0; i < rows; ++i) {
    float* row = scores + i * keys;
    const std::int64_t seen = keys - rows + i + 1;
    const float top = largest(row, seen);
    const double sum = exp_row(row, seen, top);
    std::memset(row + seen, 0, static_cast<std::size_t>(keys - seen) * sizeof(float));
    inverse_sum[i] = static_cast<float>(1 / sum);
    saved.log_sum[(block.begin + i) * n.query_heads + head] =
        static_cast<float>(static_cast<double>(top) + std::log(sum));
  }
  gemm(rows, dim, keys, 1, {scores, keys}, {in.v.as<float>() + first_key, k_stride}, 0, o + first_query, q_stride);
  for (std::int64_t i = 0; i < rows; ++i) scale_row(o + first_query + i * q_stride, dim, inverse_sum[i]);
}

}  // namespace

void HostAttention::forward(Stream& stream, const Forward& a) {
  constexpr const char* op = "attention forward";
  const Sizes n = arguments::check(a);
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    Carve saved_carve(a.saved), scratch_carve(a.workspace);
    const AttentionSaved saved = layout_saved(saved_carve, n);
    const AttentionScratch scratch = layout_scratch(scratch_carve, n, pool.threads());
    const std::int64_t blocks = make_blocks(a.in, n, scratch);
    norm_and_rope(pool, a.in, n, saved, scratch, true);
    const std::int64_t tile = std::min(queries_per_block, n.longest) * n.longest;
    pool.run(blocks * n.query_heads, [&](std::int64_t task, int worker) {
      forward_block(a.in, n, saved, scratch, scratch.blocks[task / n.query_heads], task % n.query_heads,
                    scratch.scores + worker * tile, a.o.as<float>());
    });
  });
}

}  // namespace ananke::host
