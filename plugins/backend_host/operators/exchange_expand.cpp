// Exchange at the ranks that hold the experts: copies into rows by expert, and per-copy sums back.
#include <limits>
#include <vector>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/carve.h"
#include "plugins/backend_host/operators/exchange.h"
#include "plugins/backend_host/operators/exchange_parts.h"
#include "plugins/backend_host/operators/row_math.h"

namespace ananke::host {
namespace {

struct ExpandSizes {
  std::int64_t copies, rows, hidden, k, local;  // capacities
};

ExpandSizes check_expand(const char* op, const Exchange::Expand& a) {
  expect_rank(op, "rows", a.rows, 2);
  expect_rank(op, "offsets", a.offsets, 1);
  expect_rank(op, "arrived", a.arrived, 2);
  expect_rank(op, "rows of copies", a.copies.rows, 2);
  ANANKE_CHECK(a.offsets.elements() >= 1, "{}: offsets is empty", op);
  const ExpandSizes n{a.copies.rows.shape[0], a.rows.shape[0], a.rows.shape[1], a.copies.rows.shape[1],
                      a.offsets.elements() - 1};
  expect(op, "rows", a.rows, {n.rows, n.hidden});
  expect(op, "offsets", a.offsets, DType::i32, {n.local + 1});
  expect(op, "arrived", a.arrived, DType::i32, {a.arrived.shape[0], a.arrived.shape[1]});
  ANANKE_CHECK(a.chunk >= 0 && a.chunk < a.arrived.shape[1], "{}: chunk {} of {}", op, a.chunk, a.arrived.shape[1]);
  ANANKE_CHECK(n.rows <= std::numeric_limits<std::int32_t>::max(), "{}: {} rows do not fit i32", op, n.rows);
  expect_copies(op, a.copies, n.copies);
  expect_wire(op, a.wire, a.row, n.hidden, {WireRow::Extras::routing});
  ANANKE_CHECK(a.row.k == n.k, "{}: wire rows of {} choices for copies of {}", op, a.row.k, n.k);
  ANANKE_CHECK(a.wire.shape[0] >= n.copies, "{}: wire of {} rows for {} copies", op, a.wire.shape[0], n.copies);
  return n;
}

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

struct CopySizes {
  std::int64_t hidden, k, rows;
};

// `by_row` is [row capacity, H]; `wire` has a row per copy.
CopySizes check_copies(const char* op, const char* name, const TensorView& by_row, const Exchange::Copies& copies,
                       const TensorView& wire, const WireRow& row, WireRow::Extras extras) {
  expect_rank(op, name, by_row, 2);
  expect_rank(op, "rows of copies", copies.rows, 2);
  const CopySizes n{by_row.shape[1], copies.rows.shape[1], by_row.shape[0]};
  expect(op, name, by_row, {n.rows, n.hidden});
  expect_copies(op, copies, copies.rows.shape[0]);
  expect_wire(op, wire, row, n.hidden, {extras});
  ANANKE_CHECK(row.k == n.k, "{}: wire rows of {} choices for copies of {}", op, row.k, n.k);
  ANANKE_CHECK(wire.shape[0] >= copies.rows.shape[0], "{}: wire of {} rows for {} copies", op, wire.shape[0],
               copies.rows.shape[0]);
  return n;
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
  const ExpandSizes n = check_expand(op, a);
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
  const CopySizes n = check_copies(op, "outputs", a.outputs, a.copies, a.wire, a.row, WireRow::Extras::none);
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
  const CopySizes n = check_copies(op, "outputs", a.outputs, a.copies, a.wire, a.row, WireRow::Extras::none);
  expect(op, "d_outputs", a.d_outputs, {n.rows, n.hidden});
  expect(op, "dweights", a.dweights, {a.copies.rows.shape[0], n.k});
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const Wire wire(a.wire, a.row);
    for_copies(op, pool, n, a.copies, [&](std::int64_t i, float* buffer) {
      const float* dy = wire.load(i, buffer);
      float* dweights = a.dweights.as<float>() + i * n.k;
      std::fill_n(dweights, n.k, 0.0f);
      const std::int32_t* rows = a.copies.rows.as<std::int32_t>() + i * n.k;
      for (std::int64_t m = 0; m < n.k && rows[m] >= 0; ++m) {
        const std::int64_t slot = a.copies.slots.as<std::int32_t>()[i * n.k + m], at = rows[m] * n.hidden;
        const float weight = a.copies.weights.as<float>()[i * n.k + m];
        dweights[slot] = static_cast<float>(dot(dy, a.outputs.as<float>() + at, n.hidden));
        float* d = a.d_outputs.as<float>() + at;
#pragma omp simd
        for (std::int64_t h = 0; h < n.hidden; ++h) d[h] = weight * dy[h];
      }
    });
  });
}

void HostExchange::expand_backward(Stream& stream, const ExpandBackward& a) {
  constexpr const char* op = "exchange expand_backward";
  const CopySizes n = check_copies(op, "d_rows", a.d_rows, a.copies, a.wire, a.row, WireRow::Extras::dweights);
  expect(op, "dweights", a.dweights, {a.copies.rows.shape[0], n.k});
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const Wire wire(a.wire, a.row);
    for_copies(op, pool, n, a.copies, [&](std::int64_t i, float* sum) {
      add_entries(n, a.d_rows.as<float>(), a.copies.rows.as<std::int32_t>() + i * n.k, nullptr, sum);
      wire.store(i, sum);
      std::copy_n(a.dweights.as<float>() + i * n.k, n.k, wire.floats(i));
    });
  });
}

}  // namespace ananke::host
