#include "plugins/backend_host/operators/permute.h"

#include <algorithm>
#include <cstring>

#include "plugins/backend_host/host_stream.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::host {
namespace {

constexpr std::int64_t elements_per_task = 1 << 14;

using Sizes = arguments::PermuteSizes;

std::int64_t tokens_per_task(const Sizes& n) {
  return std::max<std::int64_t>(1, elements_per_task / std::max<std::int64_t>(1, n.hidden * n.k));
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
  const Sizes n = arguments::check(a);
  expect_region("permute forward", "workspace", workspace_, workspace(n.slots(), a.experts));
  HostStream::of(stream).enqueue([&pool = pool_, n, a, workspace_] {
    std::int32_t* row_of_slot = a.row_of_slot.as<std::int32_t>();
    sort_slots(n.slots(), a.experts, a.indices.as<std::int32_t>(), a.offsets.as<std::int32_t>(), row_of_slot,
               Carve(workspace_).take<std::int32_t>(a.experts));
    const float* x = a.x.as<float>();
    float* rows = a.rows.as<float>();
    if (n.hidden == 0) return;
    pool.run_blocks(n.tokens, tokens_per_task(n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin * n.k; slot < end * n.k; ++slot) {
        std::memcpy(rows + row_of_slot[slot] * n.hidden, x + slot / n.k * n.hidden,
                    static_cast<std::size_t>(n.hidden) * sizeof(float));
      }
    });
  });
}

void HostPermute::backward(Stream& stream, const Backward& a) {
  const Sizes n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const std::int32_t* row_of_slot = a.row_of_slot.as<std::int32_t>();
    const float* drows = a.drows.as<float>();
    pool.run_blocks(n.tokens, tokens_per_task(n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin * n.k; a.dweights && slot < end * n.k; ++slot) {
        a.dweights.as<float>()[slot] = a.d_row_weights.as<float>()[row_of_slot[slot]];
      }
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
  const Sizes n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const std::int32_t* row_of_slot = a.row_of_slot.as<std::int32_t>();
    const float* rows = a.rows.as<float>();
    const float* weights = a.weights.as<float>();
    pool.run_blocks(n.tokens, tokens_per_task(n), [&](std::int64_t begin, std::int64_t end) {
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
  const Sizes n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const std::int32_t* row_of_slot = a.row_of_slot.as<std::int32_t>();
    const float* weights = a.weights.as<float>();
    pool.run_blocks(n.tokens, tokens_per_task(n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin * n.k; slot < end * n.k; ++slot) {
        a.row_weights.as<float>()[row_of_slot[slot]] = weights[slot];
        if (n.hidden == 0) continue;
        std::memcpy(a.d_weighted.as<float>() + row_of_slot[slot] * n.hidden, a.dy.as<float>() + slot / n.k * n.hidden,
                    static_cast<std::size_t>(n.hidden) * sizeof(float));
      }
    });
  });
}

}  // namespace ananke::host
