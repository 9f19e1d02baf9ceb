// Exchange at the ranks that hold the experts: copies into rows by expert, and per-copy sums back.
#include <vector>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/exchange.h"
#include "plugins/backend_host/operators/exchange_parts.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::host {
namespace {

using CopySizes = arguments::ExchangeCopySizes;
using ExpandSizes = arguments::ExchangeExpandSizes;

std::int64_t add_arrived(const Exchange::Expand& a, const ExpandSizes& n) {
  const std::int32_t* arrived = a.arrived.as<std::int32_t>();
  const std::int64_t ranks = a.arrived.shape[0], chunks = a.arrived.shape[1];
  std::int64_t count = 0;
  for (std::int64_t p = 0; p < ranks; ++p) count += arrived[p * chunks + a.chunk];
  ANANKE_CHECK(count >= 0 && count <= n.copies, "exchange expand: {} copies arrive in buffers for {}", count, n.copies);
  return count;
}

// A counting sort: rows of one expert keep the order of the copies. `next`: the expert's next row.
void sort_copies(const Exchange::Expand& a, const ExpandSizes& n, const Wire& wire, std::int64_t count,
                 std::int32_t* next) {
  std::int32_t* offsets = a.offsets.as<std::int32_t>();
  std::fill_n(offsets, n.local + 1, 0);
  const auto local = [&](std::int32_t expert) { return expert >= a.first_expert && expert < a.first_expert + n.local; };
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t* chosen = wire.indices(i);
    for (std::int64_t j = 0; j < n.k; ++j) {
      if (local(chosen[j])) ++offsets[chosen[j] - a.first_expert + 1];
    }
  }
  for (std::int64_t e = 0; e < n.local; ++e) offsets[e + 1] += offsets[e];
  ANANKE_CHECK(offsets[n.local] <= n.rows, "exchange expand: {} rows in a buffer for {}", offsets[n.local], n.rows);
  std::copy_n(offsets, n.local, next);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t* chosen = wire.indices(i);
    std::int32_t* rows = a.copies.rows.as<std::int32_t>() + i * n.k;
    std::int32_t* slots = a.copies.slots.as<std::int32_t>() + i * n.k;
    float* weights = a.copies.weights.as<float>() + i * n.k;
    std::int64_t entries = 0;
    for (std::int64_t j = 0; j < n.k; ++j) {
      if (!local(chosen[j])) continue;
      const std::int32_t row = next[chosen[j] - a.first_expert]++;
      std::int64_t m = entries++;
      for (; m > 0 && rows[m - 1] > row; --m) {  // ascending: the experts' order
        rows[m] = rows[m - 1];
        slots[m] = slots[m - 1];
        weights[m] = weights[m - 1];
      }
      rows[m] = row;
      slots[m] = static_cast<std::int32_t>(j);
      weights[m] = wire.floats(i)[j];
    }
    std::fill(rows + entries, rows + n.k, -1);
    std::fill(slots + entries, slots + n.k, -1);
    std::fill(weights + entries, weights + n.k, 0.0f);
  }
}

// Runs body(copy, f32 [H] of scratch) for every copy there is.
template <class Body>
void for_copies(const char* op, ThreadPool& pool, const CopySizes& n, const Exchange::Copies& copies,
                const Body& body) {
  pool.run_blocks(count_of(op, copies), rows_per_task(n.hidden * n.k), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(n.hidden));
    for (std::int64_t i = begin; i < end; ++i) body(i, buffer.data());
  });
}

// sum = sum over the copy's entries of weight (1 where `weights` is null) * row
void add_entries(const CopySizes& n, const float* by_row, const std::int32_t* rows, const float* weights, float* sum) {
  std::fill_n(sum, n.hidden, 0.0f);
  for (std::int64_t m = 0; m < n.k && rows[m] >= 0; ++m) {
    add_scaled(by_row + rows[m] * n.hidden, weights ? weights[m] : 1.0f, n.hidden, sum);
  }
}

}  // namespace

std::size_t HostExchange::workspace(std::int64_t local_experts) const {
  Carve carve;
  carve.take<std::int32_t>(local_experts);
  return carve.used();
}

void HostExchange::expand(Stream& stream, const Expand& a) {
  constexpr const char* op = "exchange expand";
  const ExpandSizes n = arguments::check(a);
  expect_region(op, "workspace", a.workspace, workspace(n.local));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const Wire wire(a.wire, a.row);
    const std::int64_t count = add_arrived(a, n);
    sort_copies(a, n, wire, count, Carve(a.workspace).take<std::int32_t>(n.local));
    *a.copies.count.as<std::int32_t>() = static_cast<std::int32_t>(count);
    const std::int32_t* rows = a.copies.rows.as<std::int32_t>();
    pool.run_blocks(count, rows_per_task(n.hidden * n.k), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t m = i * n.k; m < (i + 1) * n.k && rows[m] >= 0; ++m) {
          wire.load_into(i, a.rows.as<float>() + rows[m] * n.hidden);
        }
      }
    });
  });
}

void HostExchange::combine(Stream& stream, const Combine& a) {
  constexpr const char* op = "exchange combine";
  const CopySizes n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const Wire wire(a.wire, a.row);
    for_copies(op, pool, n, a.copies, [&](std::int64_t i, float* sum) {
      add_entries(n, a.outputs.as<float>(), a.copies.rows.as<std::int32_t>() + i * n.k,
                  a.copies.weights.as<float>() + i * n.k, sum);
      wire.store(i, sum);
    });
  });
}

void HostExchange::combine_backward(Stream& stream, const CombineBackward& a) {
  constexpr const char* op = "exchange combine_backward";
  const CopySizes n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const Wire wire(a.wire, a.row);
    const std::int32_t* rows = a.copies.rows.as<std::int32_t>();
    for_copies(op, pool, n, a.copies, [&](std::int64_t i, float*) {
      for (std::int64_t m = i * n.k; m < (i + 1) * n.k && rows[m] >= 0; ++m) {
        wire.load_into(i, a.d_weighted.as<float>() + rows[m] * n.hidden);
        a.row_weights.as<float>()[rows[m]] = a.copies.weights.as<float>()[m];
      }
    });
  });
}

void HostExchange::expand_backward(Stream& stream, const ExpandBackward& a) {
  constexpr const char* op = "exchange expand_backward";
  const CopySizes n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const Wire wire(a.wire, a.row);
    for_copies(op, pool, n, a.copies, [&](std::int64_t i, float* sum) {
      const std::int32_t* rows = a.copies.rows.as<std::int32_t>() + i * n.k;
      add_entries(n, a.d_rows.as<float>(), rows, nullptr, sum);
      wire.store(i, sum);
      std::fill_n(wire.floats(i), n.k, 0.0f);
      for (std::int64_t m = 0; m < n.k && rows[m] >= 0; ++m) {
        wire.floats(i)[a.copies.slots.as<std::int32_t>()[i * n.k + m]] = a.d_row_weights.as<float>()[rows[m]];
      }
    });
  });
}

}  // namespace ananke::host
