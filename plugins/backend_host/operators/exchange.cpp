// Exchange at the source: which copies there are, and tokens to and from the wire. The other end: exchange_expand.cpp.
#include "plugins/backend_host/operators/exchange.h"

#include <vector>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/exchange_parts.h"
#include "runtime/operators/arguments.h"

namespace ananke::host {
namespace {

using PlanSizes = arguments::ExchangePlanSizes;
using TokenSizes = arguments::ExchangeTokenSizes;

// Marks the ranks that token t needs by a 0 in its row of copies.
void mark_ranks(const PlanSizes& n, std::int64_t t, const std::int32_t* chosen, std::int64_t experts,
                std::int32_t* copies) {
  std::fill_n(copies, n.ranks, -1);
  for (std::int64_t j = 0; j < n.k; ++j) {
    ANANKE_CHECK(chosen[j] >= 0 && chosen[j] < experts, "exchange plan: expert {} of {} in choice {} of token {}",
                 chosen[j], experts, j, t);
    ANANKE_CHECK(std::find(chosen, chosen + j, chosen[j]) == chosen + j,
                 "exchange plan: token {} chooses expert {} twice", t, chosen[j]);
    copies[chosen[j] * n.ranks / experts] = 0;
  }
}

// A counting sort of one chunk's copies by rank. `counts`: of rank p at p * chunks.
void plan_chunk(const PlanSizes& n, const Exchange::Plan& a, std::int64_t begin, std::int64_t end,
                std::int32_t* counts) {
  const std::int32_t* indices = a.indices.as<std::int32_t>();
  std::int32_t* copies = a.copies.as<std::int32_t>();
  for (std::int64_t p = 0; p < n.ranks; ++p) counts[p * n.chunks] = 0;
  for (std::int64_t t = begin; t < end; ++t) {
    mark_ranks(n, t, indices + t * n.k, a.experts, copies + t * n.ranks);
    for (std::int64_t p = 0; p < n.ranks; ++p) counts[p * n.chunks] += copies[t * n.ranks + p] == 0;
  }
  std::int32_t next = 0;
  for (std::int64_t p = 0; p < n.ranks; ++p) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::int32_t& copy = copies[t * n.ranks + p];
      if (copy == 0) copy = next++;
    }
  }
}

void check_place(const char* op, std::int64_t at, std::int64_t rows) {
  ANANKE_CHECK(at < rows, "{}: copy {} in a wire of {} rows", op, at, rows);
}

}  // namespace

void HostExchange::plan(Stream& stream, const Plan& a) {
  const PlanSizes n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    pool.run(n.chunks, [&](std::int64_t chunk, int) {
      const std::int64_t begin = std::min(chunk * a.chunk_tokens, n.tokens);
      plan_chunk(n, a, begin, std::min(begin + a.chunk_tokens, n.tokens), a.counts.as<std::int32_t>() + chunk);
    });
  });
}

void HostExchange::pack(Stream& stream, const Pack& a) {
  constexpr const char* op = "exchange pack";
  const TokenSizes n = arguments::check(a);
  const WireRow row = a.row;
  const bool routed = row.extras == WireRow::Extras::routing;
  HostStream::of(stream).enqueue([&pool = pool_, n, a, row, routed] {
    const Wire wire(a.wire, row);
    const std::int32_t* copies = a.copies.as<std::int32_t>();
    const std::size_t choices = static_cast<std::size_t>(row.k) * 4;
    pool.run_blocks(n.tokens, rows_per_task(n.hidden * n.ranks), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t p = 0; p < n.ranks; ++p) {
          const std::int64_t at = copies[t * n.ranks + p];
          if (at < 0) continue;
          check_place(op, at, a.wire.shape[0]);
          wire.store(at, a.x.as<float>() + t * n.hidden);
          if (!routed) continue;
          std::memcpy(wire.floats(at), a.weights.as<float>() + t * row.k, choices);
          std::memcpy(wire.indices(at), a.indices.as<std::int32_t>() + t * row.k, choices);
        }
      }
    });
  });
}

void HostExchange::collect(Stream& stream, const Collect& a) {
  constexpr const char* op = "exchange collect";
  const TokenSizes n = arguments::check(a);
  const WireRow row = a.row;
  const bool with_weights = row.extras == WireRow::Extras::dweights;
  HostStream::of(stream).enqueue([&pool = pool_, n, a, row, with_weights] {
    const Wire wire(a.wire, row);
    pool.run_blocks(n.tokens, rows_per_task(n.hidden * n.ranks), [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> buffer(static_cast<std::size_t>(n.hidden));
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int32_t* copies = a.copies.as<std::int32_t>() + t * n.ranks;
        float* y = a.y.as<float>() + t * n.hidden;
        std::fill_n(y, n.hidden, 0.0f);
        for (std::int64_t p = 0; p < n.ranks; ++p) {
          if (copies[p] < 0) continue;
          check_place(op, copies[p], a.wire.shape[0]);
          add_scaled(wire.load(copies[p], buffer.data()), 1, n.hidden, y);
        }
        for (std::int64_t j = 0; with_weights && j < row.k; ++j) {
          const std::int64_t expert = a.indices.as<std::int32_t>()[t * row.k + j];
          const std::int32_t at = copies[expert * n.ranks / a.experts];
          check_place(op, at, a.wire.shape[0]);
          a.dweights.as<float>()[t * row.k + j] = wire.floats(at)[j];
        }
      }
    });
  });
}

}  // namespace ananke::host
