#include "plugins/backend_host/operators/permute.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/carve.h"
#include "plugins/backend_host/operators/row_math.h"
#include "plugins/backend_host/operators/validate.h"

namespace ananke::host {
namespace {

constexpr std::int64_t elements_per_task = 1 << 14;

struct Sizes {
  std::int64_t tokens, hidden, k;
  std::int64_t slots() const { return tokens * k; }
  std::int64_t tokens_per_task() const {
    return std::max<std::int64_t>(1, elements_per_task / std::max<std::int64_t>(1, hidden * k));
  }
};

// `by_token` is [T, H] and `by_row` [T * k, H], whichever direction data goes.
Sizes sizes_of(const char* op, const char* token_name, const TensorView& by_token, const char* row_name,
               const TensorView& by_row, const TensorView& row_of_slot) {
  expect_rank(op, token_name, by_token, 2);
  expect_rank(op, row_name, by_row, 2);
  const std::int64_t tokens = by_token.shape[0], slots = by_row.shape[0];
  ANANKE_CHECK(tokens == 0 ? slots == 0 : slots % tokens == 0, "{}: {} {} for {} {}", op, row_name,
               to_string(by_row.shape), token_name, to_string(by_token.shape));
  ANANKE_CHECK(slots <= std::numeric_limits<std::int32_t>::max(), "{}: {} rows do not fit row_of_slot", op, slots);
  const Sizes n{tokens, by_token.shape[1], tokens == 0 ? 0 : slots / tokens};
  expect(op, token_name, by_token, {n.tokens, n.hidden});
  expect(op, row_name, by_row, {slots, n.hidden});
  expect(op, "row_of_slot", row_of_slot, DType::i32, {slots});
  return n;
}

void check_weights(const char* op, const char* name, const TensorView& weights, const Sizes& n) {
  expect_rank(op, name, weights, 2);
  expect(op, name, weights, {n.tokens, n.tokens == 0 ? weights.shape[1] : n.k});
}

// A counting sort: stable, so rows of one expert keep the order of their slots.
void sort_slots(std::int64_t slots, std::int64_t experts, const std::int32_t* indices, std::int32_t* offsets,
                std::int32_t* row_of_slot, std::int32_t* next) {
  std::fill_n(offsets, experts + 1, 0);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    ANANKE_CHECK(indices[slot] >= 0 && indices[slot] < experts, "permute: expert {} of {} in slot {}", indices[slot],
                 experts, slot);
    ++offsets[indices[slot] + 1];
  }
  for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  std::copy_n(offsets, experts, next);
  for (std::int64_t slot = 0; slot < slots; ++slot) row_of_slot[slot] = next[indices[slot]]++;
}

}  // namespace

std::size_t HostPermute::workspace(std::int64_t, std::int64_t experts) const {
  Carve carve;
  carve.take<std::int32_t>(experts);
  return carve.used();
}

void HostPermute::forward(Stream& stream, const Forward& a, Region workspace_) {
  constexpr const char* op = "permute forward";
  const Sizes n = sizes_of(op, "x", a.x, "rows", a.rows, a.row_of_slot);
  expect_rank(op, "indices", a.indices, 2);
  expect(op, "indices", a.indices, DType::i32, {n.tokens, n.tokens == 0 ? a.indices.shape[1] : n.k});
  ANANKE_CHECK(a.experts >= 0, "{}: {} experts", op, a.experts);
  expect(op, "offsets", a.offsets, DType::i32, {a.experts + 1});
  expect_region(op, "workspace", workspace_, workspace(n.slots(), a.experts));
  HostStream::of(stream).enqueue([&pool = pool_, n, a, workspace_] {
    std::int32_t* row_of_slot = a.row_of_slot.as<std::int32_t>();
    sort_slots(n.slots(), a.experts, a.indices.as<std::int32_t>(), a.offsets.as<std::int32_t>(), row_of_slot,
               Carve(workspace_).take<std::int32_t>(a.experts));
    const float* x = a.x.as<float>();
    float* rows = a.rows.as<float>();
    if (n.hidden == 0) return;
    pool.run_blocks(n.tokens, n.tokens_per_task(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin * n.k; slot < end * n.k; ++slot) {
        std::memcpy(rows + row_of_slot[slot] * n.hidden, x + slot / n.k * n.hidden,
                    static_cast<std::size_t>(n.hidden) * sizeof(float));
      }
    });
  });
}

void HostPermute::backward(Stream& stream, const Backward& a) {
  const Sizes n = sizes_of("permute backward", "dx", a.dx, "drows", a.drows, a.row_of_slot);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const std::int32_t* row_of_slot = a.row_of_slot.as<std::int32_t>();
    const float* drows = a.drows.as<float>();
    pool.run_blocks(n.tokens, n.tokens_per_task(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        float* dx = a.dx.as<float>() + t * n.hidden;
        std::fill_n(dx, n.hidden, 0.0f);
        for (std::int64_t slot = t * n.k; slot < (t + 1) * n.k; ++slot) {
          const float* from = drows + row_of_slot[slot] * n.hidden;
#pragma omp simd
          for (std::int64_t j = 0; j < n.hidden; ++j) dx[j] += from[j];
        }
      }
    });
  });
}

void HostPermute::combine_forward(Stream& stream, const CombineForward& a) {
  constexpr const char* op = "combine forward";
  const Sizes n = sizes_of(op, "y", a.y, "rows", a.rows, a.row_of_slot);
  check_weights(op, "weights", a.weights, n);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const std::int32_t* row_of_slot = a.row_of_slot.as<std::int32_t>();
    const float* rows = a.rows.as<float>();
    const float* weights = a.weights.as<float>();
    pool.run_blocks(n.tokens, n.tokens_per_task(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        float* y = a.y.as<float>() + t * n.hidden;
        std::fill_n(y, n.hidden, 0.0f);
        for (std::int64_t slot = t * n.k; slot < (t + 1) * n.k; ++slot) {
          const float* from = rows + row_of_slot[slot] * n.hidden;
          const float weight = weights[slot];
#pragma omp simd
          for (std::int64_t j = 0; j < n.hidden; ++j) y[j] += weight * from[j];
        }
      }
    });
  });
}

void HostPermute::combine_backward(Stream& stream, const CombineBackward& a) {
  constexpr const char* op = "combine backward";
  const Sizes n = sizes_of(op, "dy", a.dy, "rows", a.rows, a.row_of_slot);
  check_weights(op, "weights", a.weights, n);
  check_weights(op, "dweights", a.dweights, n);
  expect(op, "drows", a.drows, {n.slots(), n.hidden});
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const std::int32_t* row_of_slot = a.row_of_slot.as<std::int32_t>();
    const float* weights = a.weights.as<float>();
    float* dweights = a.dweights.as<float>();
    pool.run_blocks(n.tokens, n.tokens_per_task(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin * n.k; slot < end * n.k; ++slot) {
        const float* dy = a.dy.as<float>() + slot / n.k * n.hidden;
        const float* row = a.rows.as<float>() + row_of_slot[slot] * n.hidden;
        float* drow = a.drows.as<float>() + row_of_slot[slot] * n.hidden;
        const float weight = weights[slot];
        dweights[slot] = static_cast<float>(dot(dy, row, n.hidden));
#pragma omp simd
        for (std::int64_t j = 0; j < n.hidden; ++j) drow[j] = weight * dy[j];
      }
    });
  });
}

}  // namespace ananke::host
