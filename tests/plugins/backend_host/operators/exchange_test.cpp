// Token exchange: plan, pack and collect at the source; expand, combine and their backwards where experts are held.
#include "runtime/operators/exchange.h"

#include <bit>
#include <cstring>
#include <numeric>

#include "plugins/backend_host/operators/bf16.h"
#include "runtime/operators/reference/exchange.h"
#include "tests/plugins/backend_host/operators/fixture.h"

namespace ananke::host {
namespace {

using reference::ExchangeSizes;
using Bytes = std::vector<std::uint8_t>;

// Distinct experts per token. skew > 0: the first choice is always expert `skew - 1`.
Ints choose(const ExchangeSizes& n, unsigned seed, int skew = 0) {
  std::mt19937 engine(seed);
  Ints all(n.experts), indices;
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    std::shuffle(all.begin(), all.end(), engine);
    if (skew > 0) std::iter_swap(all.begin(), std::find(all.begin(), all.end(), skew - 1));
    indices.insert(indices.end(), all.begin(), all.begin() + n.k);
  }
  return indices;
}

struct Planned {
  Ints copies, counts;
};

Planned plan(Host& host, const ExchangeSizes& n, const Ints& indices, std::int64_t chunk_tokens, std::int64_t chunks) {
  Planned out{Ints(n.tokens * n.ranks, -9), Ints(n.ranks * chunks, -9)};
  host->exchange->plan(host.stream, {view(indices, {n.tokens, n.k}), n.experts, chunk_tokens,
                                     view(out.copies, {n.tokens, n.ranks}), view(out.counts, {n.ranks, chunks})});
  host.finish();
  return out;
}

// A wire of `rows` rows, full of bytes that are no number.
Bytes wire_of(std::int64_t rows, const WireRow& row) {
  return Bytes(static_cast<std::size_t>(rows * row.bytes()), 0xff);
}
TensorView wire_view(const Bytes& wire, const WireRow& row) {
  return view(wire, {static_cast<std::int64_t>(wire.size()) / row.bytes(), row.bytes()});
}
// The f32 values of rows [0, rows), and what stands behind them.
Floats values_of(const Bytes& wire, const WireRow& row, std::int64_t rows) {
  Floats values;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::uint8_t* at = wire.data() + i * row.bytes();
    for (std::int64_t h = 0; h < row.hidden; ++h) {
      float value = 0;
      if (row.values == DType::f32) {
        std::memcpy(&value, at + h * 4, 4);
      } else {
        std::uint16_t half = 0;
        std::memcpy(&half, at + h * 2, 2);
        value = from_bf16(half);
      }
      values.push_back(value);
    }
  }
  return values;
}
template <class T>
std::vector<T> behind(const Bytes& wire, const WireRow& row, std::int64_t rows, std::int64_t offset) {
  std::vector<T> values(static_cast<std::size_t>(rows * row.k));
  for (std::int64_t i = 0; i < rows && row.k > 0; ++i) {
    std::memcpy(values.data() + i * row.k, wire.data() + i * row.bytes() + offset, static_cast<std::size_t>(row.k) * 4);
  }
  return values;
}

const ExchangeSizes cases[] = {{0, 3, 4, 2, 2},   {1, 1, 1, 1, 1},     {5, 3, 4, 2, 2},  {7, 5, 3, 2, 4},
                               {31, 17, 7, 3, 3}, {64, 8, 16, 8, 4},   {13, 4, 2, 2, 8}, {97, 33, 11, 5, 5},
                               {40, 64, 5, 1, 3}, {201, 130, 12, 4, 2}};

TEST(HostExchange, PlansOneCopyPerRankAndChunkByRankThenToken) {
  Host host(2);
  for (const ExchangeSizes& n : cases) {
    for (const std::int64_t chunks : {1, 2, 3, 7}) {
      const std::int64_t each = (n.tokens + chunks - 1) / chunks + 1;
      for (const int skew : {0, 1}) {
        const Ints indices = choose(n, 5, skew);
        Ints copies(n.tokens * n.ranks), counts(n.ranks * chunks);
        reference::exchange_plan(n, indices.data(), each, chunks, copies.data(), counts.data());
        const Planned got = plan(host, n, indices, each, chunks);
        EXPECT_EQ(got.copies, copies);
        EXPECT_EQ(got.counts, counts);
        EXPECT_LE(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), n.tokens * std::min(n.k, n.ranks));
      }
    }
  }
}

TEST(HostExchange, PacksTokensWithTheirRoutingAndCollectsSumsInRankOrder) {
  Host host(2);
  for (const ExchangeSizes& n : cases) {
    for (const DType values : {DType::f32, DType::bf16}) {
      const Ints indices = choose(n, 7);
      const Planned planned = plan(host, n, indices, n.tokens + 1, 1);
      const std::int64_t copies = std::accumulate(planned.counts.begin(), planned.counts.end(), std::int64_t{0});
      const Floats x = random_floats(n.tokens * n.hidden, 1), weights = random_floats(n.tokens * n.k, 2);
      const Shape choices{n.tokens, n.k}, by_token{n.tokens, n.hidden}, by_copy{n.tokens, n.ranks};
      const WireRow token{values, WireRow::Extras::routing, n.hidden, n.k};
      const Bytes wire = wire_of(copies + 1, token);
      host->exchange->pack(host.stream, {view(x, by_token), view(planned.copies, by_copy), view(weights, choices),
                                         view(indices, choices), token, wire_view(wire, token)});
      host.finish();
      Doubles want(copies * n.hidden);
      reference::exchange_pack(n, to_doubles(x).data(), planned.copies.data(), want.data());
      expect_close("wire", values_of(wire, token, copies), want, values == DType::f32 ? 0 : 1.0 / 256);
      const Floats carried = behind<float>(wire, token, copies, token.extras_begin());
      const Ints chosen = behind<std::int32_t>(wire, token, copies, token.indices_begin());
      for (std::int64_t t = 0; t < n.tokens; ++t) {
        for (std::int64_t p = 0; p < n.ranks; ++p) {
          const std::int64_t at = planned.copies[t * n.ranks + p];
          for (std::int64_t j = 0; at >= 0 && j < n.k; ++j) {
            EXPECT_EQ(carried[at * n.k + j], weights[t * n.k + j]);
            EXPECT_EQ(chosen[at * n.k + j], indices[t * n.k + j]);
          }
        }
      }
      EXPECT_EQ(wire.back(), 0xff) << "the row after the last was touched";

      // What comes back: values and dweights of every copy.
      const WireRow gradient{values, WireRow::Extras::dweights, n.hidden, n.k};
      const Bytes back = wire_of(copies, gradient);
      // Written by the operator that makes such rows: one row per copy, of its own, for its last slot.
      Floats d_row_weights(copies);
      std::iota(d_row_weights.begin(), d_row_weights.end(), 1.0f);
      Ints rows(copies * n.k, -1), slots(copies * n.k, -1), count = {static_cast<std::int32_t>(copies)};
      for (std::int64_t i = 0; i < copies; ++i) {
        rows[i * n.k] = static_cast<std::int32_t>(i);
        slots[i * n.k] = static_cast<std::int32_t>(n.k - 1);
      }
      const Floats nothing(copies * n.k), sums = random_floats(copies * n.hidden, 3);
      const Exchange::Copies map{view(count, {1}), view(rows, {copies, n.k}), view(slots, {copies, n.k}),
                                 view(nothing, {copies, n.k})};
      Floats y = nans(n.tokens * n.hidden), dw = nans(n.tokens * n.k);
      host->exchange->expand_backward(host.stream, {view(sums, {copies, n.hidden}), view(d_row_weights, {copies}), map,
                                                    gradient, wire_view(back, gradient)});
      host->exchange->collect(host.stream, {wire_view(back, gradient), gradient, view(planned.copies, by_copy),
                                            view(y, by_token), view(indices, choices), n.experts, view(dw, choices)});
      host.finish();
      Doubles want_y(n.tokens * n.hidden);
      reference::exchange_collect(n, to_doubles(sums).data(), planned.copies.data(), want_y.data());
      expect_close("y", y, want_y, values == DType::f32 ? 1e-6 : 1.0 / 128);
      for (std::int64_t t = 0; t < n.tokens; ++t) {
        for (std::int64_t j = 0; j < n.k; ++j) {
          const std::int64_t p = reference::rank_of_expert(indices[t * n.k + j], n.ranks, n.experts);
          const std::int64_t copy = planned.copies[t * n.ranks + p];
          EXPECT_EQ(dw[t * n.k + j], j == n.k - 1 ? d_row_weights[copy] : 0.0f);
        }
      }
    }
  }
}

// What one rank of n.ranks sees when all of n.tokens tokens of every rank come to it or not.
struct Arrived {
  ExchangeSizes n;
  std::int64_t copies, capacity, first, local;
  Ints indices, arrived;  // of the copies; [ranks, 2 chunks], the first chunk's
  Floats x, weights;
  Bytes wire;
  WireRow row;
};

Arrived arrive(Host& host, const ExchangeSizes& n, std::int64_t rank, DType values, int skew) {
  Arrived a;
  a.n = n;
  a.row = {values, WireRow::Extras::routing, n.hidden, n.k};
  a.first = (rank * n.experts + n.ranks - 1) / n.ranks;
  a.local = ((rank + 1) * n.experts + n.ranks - 1) / n.ranks - a.first;
  a.capacity = (a.local > 0 ? n.tokens * n.ranks : 0) + 2;  // some more than can come
  a.wire = wire_of(a.capacity, a.row);
  a.copies = 0;
  for (std::int64_t source = 0; source < n.ranks; ++source) {
    const Ints indices = choose(n, 11 + static_cast<unsigned>(source), skew);
    const Floats x = random_floats(n.tokens * n.hidden, 20 + static_cast<unsigned>(source));
    const Floats weights = random_floats(n.tokens * n.k, 40 + static_cast<unsigned>(source));
    Ints places(n.tokens, -1);
    std::int32_t count = 0;
    for (std::int64_t t = 0; t < n.tokens; ++t) {
      bool mine = false;
      for (std::int64_t j = 0; j < n.k; ++j) {
        mine = mine || (indices[t * n.k + j] >= a.first && indices[t * n.k + j] < a.first + a.local);
      }
      if (!mine) continue;
      places[t] = static_cast<std::int32_t>(a.copies + count++);
      a.indices.insert(a.indices.end(), indices.begin() + t * n.k, indices.begin() + (t + 1) * n.k);
      a.weights.insert(a.weights.end(), weights.begin() + t * n.k, weights.begin() + (t + 1) * n.k);
      a.x.insert(a.x.end(), x.begin() + t * n.hidden, x.begin() + (t + 1) * n.hidden);
    }
    host->exchange->pack(host.stream,
                         {view(x, {n.tokens, n.hidden}), view(places, {n.tokens, 1}), view(weights, {n.tokens, n.k}),
                          view(indices, {n.tokens, n.k}), a.row, wire_view(a.wire, a.row)});
    host.finish();
    a.copies += count;
    a.arrived.push_back(count);
    a.arrived.push_back(1000);  // the other chunk's
  }
  return a;
}

struct Expanded {
  Ints offsets, rows, slots, count;
  Floats by_row, weights, sums, dy_sums, d_weighted, row_weights, back_weights;
};

// Expand, combine the rows as if experts changed nothing, and the backwards with dy = x.
Expanded expand(Host& host, const Arrived& a) {
  const ExchangeSizes& n = a.n;
  const std::int64_t row_capacity = a.capacity * std::min(n.k, a.local) + 1;
  const Shape entries{a.capacity, n.k}, by_row{row_capacity, n.hidden};
  Expanded out{Ints(a.local + 1, -9),
               Ints(a.capacity * n.k, -9),
               Ints(a.capacity * n.k, -9),
               Ints(1, -9),
               nans(row_capacity * n.hidden),
               nans(a.capacity * n.k),
               {},
               {},
               nans(row_capacity * n.hidden),
               nans(row_capacity),
               {}};
  const DType values = a.row.values;
  const WireRow plain{values, WireRow::Extras::none, n.hidden, n.k};
  const WireRow gradient{values, WireRow::Extras::dweights, n.hidden, n.k};
  const Bytes sums = wire_of(a.capacity, plain), dy = wire_of(a.capacity, plain), back = wire_of(a.capacity, gradient);
  Scratch workspace(host->exchange->workspace(a.local));
  const Exchange::Copies map{view(out.count, {1}), view(out.rows, entries), view(out.slots, entries),
                             view(out.weights, entries)};
  host->exchange->expand(host.stream,
                         {wire_view(a.wire, a.row), a.row, view(a.arrived, {n.ranks, 2}), 0, a.first,
                          view(out.by_row, by_row), view(out.offsets, {a.local + 1}), map, workspace.region()});
  host->exchange->combine(host.stream, {view(out.by_row, by_row), map, plain, wire_view(sums, plain)});
  Ints places(a.copies);
  std::iota(places.begin(), places.end(), 0);
  host->exchange->pack(
      host.stream, {view(a.x, {a.copies, n.hidden}), view(places, {a.copies, 1}), {}, {}, plain, wire_view(dy, plain)});
  host->exchange->combine_backward(host.stream, {wire_view(dy, plain), plain, map, view(out.d_weighted, by_row),
                                                 view(out.row_weights, {row_capacity})});
  host->exchange->expand_backward(host.stream, {view(out.d_weighted, by_row), view(out.row_weights, {row_capacity}),
                                                map, gradient, wire_view(back, gradient)});
  host.finish();
  out.sums = values_of(sums, plain, a.copies);
  out.dy_sums = values_of(back, gradient, a.copies);
  out.back_weights = behind<float>(back, gradient, a.copies, gradient.extras_begin());
  return out;
}

template <class T>
std::vector<T> first(const std::vector<T>& all, std::int64_t count) {
  return {all.begin(), all.begin() + count};
}

void compare_expanded(const Arrived& a, const Expanded& got, double tolerance) {
  const ExchangeSizes& n = a.n;
  Ints offsets(a.local + 1), rows(a.copies * n.k), slots(a.copies * n.k);
  reference::exchange_expand(n, a.copies, a.indices.data(), a.first, a.local, offsets.data(), rows.data(),
                             slots.data());
  EXPECT_EQ(got.offsets, offsets);
  EXPECT_EQ(got.count, Ints{static_cast<std::int32_t>(a.copies)});
  EXPECT_EQ(first(got.rows, a.copies * n.k), rows);
  EXPECT_EQ(first(got.slots, a.copies * n.k), slots);
  const std::int64_t used = offsets[a.local];
  Doubles by_row(used * n.hidden), weights(a.copies * n.k), x = to_doubles(a.x);
  for (std::int64_t i = 0; i < a.copies * n.k; ++i) {
    if (rows[i] < 0) continue;
    weights[i] = a.weights[i / n.k * n.k + slots[i]];
    for (std::int64_t h = 0; h < n.hidden; ++h) by_row[rows[i] * n.hidden + h] = x[i / n.k * n.hidden + h];
  }
  expect_close("weights", first(got.weights, a.copies * n.k), weights, 0);
  expect_close("rows", first(got.by_row, used * n.hidden), by_row, tolerance);
  for (std::size_t i = used * n.hidden; i < got.by_row.size(); ++i) EXPECT_TRUE(std::isnan(got.by_row[i]));
  Doubles sums(a.copies * n.hidden), d_weighted(by_row.size()), row_weights(used), dweights(weights.size()),
      dx(sums.size());
  reference::exchange_combine(n, a.copies, by_row.data(), rows.data(), weights.data(), sums.data());
  reference::exchange_combine_backward(n, a.copies, x.data(), rows.data(), weights.data(), d_weighted.data(),
                                       row_weights.data());
  reference::exchange_combine<double>(n, a.copies, d_weighted.data(), rows.data(), nullptr, dx.data());
  reference::exchange_dweights(n, a.copies, row_weights.data(), rows.data(), slots.data(), dweights.data());
  expect_close("combine", got.sums, sums, 3 * tolerance + 1e-6);
  expect_close("d_weighted", first(got.d_weighted, used * n.hidden), d_weighted, tolerance);
  expect_close("row_weights", first(got.row_weights, used), row_weights, 0);
  expect_close("expand_backward", got.dy_sums, dx, 4 * tolerance + 1e-6);
  expect_close("dweights", got.back_weights, dweights, 0);
}

TEST(HostExchange, ExpandsCopiesIntoRowsByExpertAndSumsThemBack) {
  Host host(2);
  for (const ExchangeSizes& n : cases) {
    for (std::int64_t rank = 0; rank < n.ranks; ++rank) {
      for (const int skew : {0, 1}) {
        SCOPED_TRACE(testing::Message() << n.tokens << " tokens, " << n.experts << " experts, k " << n.k << ", rank "
                                        << rank << " of " << n.ranks << ", skew " << skew);
        const Arrived exact = arrive(host, n, rank, DType::f32, skew);
        compare_expanded(exact, expand(host, exact), 0);
        const Arrived rounded = arrive(host, n, rank, DType::bf16, skew);
        compare_expanded(rounded, expand(host, rounded), 1.0 / 256);
      }
    }
  }
}

// A running sum in bf16 would stay at 1.
TEST(HostExchange, SumsInF32AndRoundsOnceForTheWire) {
  Host host;
  const WireRow row{DType::bf16, WireRow::Extras::none, 1, 4};
  const Floats outputs = {1.0f, 0.00390625f, 0.001953125f, 0.001953125f}, weights(4, 1.0f);
  const Ints rows = {0, 1, 2, 3}, slots = {0, 1, 2, 3}, count = {1};
  const Bytes wire = wire_of(1, row);
  host->exchange->combine(host.stream,
                          {view(outputs, {4, 1}),
                           {view(count, {1}), view(rows, {1, 4}), view(slots, {1, 4}), view(weights, {1, 4})},
                           row,
                           wire_view(wire, row)});
  host.finish();
  EXPECT_EQ(values_of(wire, row, 1), Floats{1.0078125f});
}

TEST(HostExchange, RoundsToTheNearestBf16TiesToEvenAndKeepsNan) {
  EXPECT_EQ(from_bf16(to_bf16(1.00390625f)), 1.0f);       // a tie, down to even
  EXPECT_EQ(from_bf16(to_bf16(1.01171875f)), 1.015625f);  // a tie, up to even
  EXPECT_EQ(from_bf16(to_bf16(std::nextafter(1.00390625f, 2.0f))), 1.0078125f);
  EXPECT_EQ(from_bf16(to_bf16(-1.01171875f)), -1.015625f);
  EXPECT_EQ(from_bf16(to_bf16(3.4e38f)), HUGE_VALF);
  EXPECT_EQ(from_bf16(to_bf16(-HUGE_VALF)), -HUGE_VALF);
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(HostExchange, GivesTheSameBitsWithAnyNumberOfThreads) {
  expect_same_bits_with_any_threads([](Host& host) {
    const Arrived a = arrive(host, {301, 67, 13, 4, 3}, 1, DType::f32, 0);
    const Expanded got = expand(host, a);
    const std::int64_t used = got.offsets.back() * a.n.hidden;
    return std::vector{first(got.by_row, used), got.sums, got.dy_sums, first(got.d_weighted, used), got.back_weights};
  });
}

TEST(HostExchange, RefusesRoutingThatIsNone) {
  const ExchangeSizes n{2, 1, 4, 2, 2};
  const auto refused = [&](const Ints& indices, std::initializer_list<const char*> words) {
    expect_refused(
        [&] {
          Host host;
          plan(host, n, indices, 2, 1);
        },
        words);
  };
  refused({0, 1, 2, 4}, {"exchange plan", "expert 4 of 4", "choice 1 of token 1"});
  refused({0, 1, -1, 3}, {"exchange plan", "expert -1 of 4", "token 1"});
  refused({0, 1, 3, 3}, {"exchange plan", "token 1", "expert 3 twice"});
  Host host;
  expect_refused([&] { plan(host, n, {0, 1, 2, 3}, 1, 1); }, {"exchange plan", "1 chunks of 1 tokens", "2 tokens"});
}

TEST(HostExchange, RefusesShapesThatDoNotFit) {
  Host host;
  const Floats x(6), weights(4);
  const Ints indices(4), copies = {0, -1, 1, 2};
  const WireRow row{DType::f32, WireRow::Extras::routing, 3, 2};
  const Bytes wire = wire_of(3, row), short_wire = wire_of(2, row);
  const auto pack = [&](const TensorView& vx, const TensorView& vw, const WireRow& of, const TensorView& to) {
    host->exchange->pack(host.stream, {vx, view(copies, {2, 2}), vw, view(indices, {2, 2}), of, to});
  };
  const TensorView vx = view(x, {2, 3}), vw = view(weights, {2, 2}), to = wire_view(wire, row);
  expect_refused([&] { pack(view(x, {3, 2}), vw, row, to); }, {"exchange pack", "copies", "[2, 2]", "[3, 2]"});
  expect_refused([&] { pack(vx, {}, row, to); }, {"exchange pack", "weights", "[2, 2]"});
  expect_refused([&] { pack(vx, vw, {DType::i32, row.extras, 3, 2}, to); }, {"exchange pack", "i32", "f32 or bf16"});
  expect_refused([&] { pack(vx, vw, {DType::f32, row.extras, 4, 2}, to); }, {"exchange pack", "4 values", "of 3"});
  expect_refused([&] { pack(vx, vw, {DType::f32, row.extras, 3, 7}, to); }, {"exchange pack", "[3, 80]", "[3, 48]"});
  expect_refused(
      [&] {
        pack(vx, vw, {DType::f32, WireRow::Extras::dweights, 3, 2}, to);
      },
      {"exchange pack", "does not move"});
  pack(vx, vw, row, wire_view(short_wire, row));
  expect_refused([&] { host.finish(); }, {"exchange pack", "copy 2 in a wire of 2 rows"});
}

TEST(HostExchange, RefusesMoreCopiesOrRowsThanThereIsRoomFor) {
  Host good;
  Arrived a = arrive(good, {5, 3, 4, 2, 2}, 0, DType::f32, 0);
  a.arrived[0] = 1000;
  expect_refused(
      [&] {
        Host host;
        expand(host, a);
      },
      {"exchange expand", "copies arrive in buffers for 12"});
  a = arrive(good, {5, 3, 4, 2, 2}, 0, DType::f32, 0);
  // Every copy chooses local expert 0 twice: more rows than any routing makes.
  for (std::int64_t i = 0; i < a.copies; ++i) {
    std::memset(a.wire.data() + i * a.row.bytes() + a.row.indices_begin(), 0, 8);
  }
  a.local = 1;
  a.capacity = a.copies;
  a.wire.resize(static_cast<std::size_t>(a.copies * a.row.bytes()));
  expect_refused(
      [&] {
        Host host;
        expand(host, a);
      },
      {"exchange expand", "rows in a buffer for"});
}

}  // namespace
}  // namespace ananke::host
