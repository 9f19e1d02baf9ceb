// bf16 and fp8 on the wire, and the sum of what landed.
#include "runtime/operators/reference/wire.h"

#include "fixture.h"

namespace ananke::host {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Halves = std::vector<std::uint16_t>;
using Pieces = std::vector<Wire::BlockPiece>;

TensorView halves(const Halves& values, Shape shape) {
  return {const_cast<std::uint16_t*>(values.data()), DType::bf16, shape};
}
TensorView flat(const Floats& values) { return view(values, {static_cast<std::int64_t>(values.size())}); }
TensorView flat(Bytes& bytes) { return view_of(bytes.data(), {static_cast<std::int64_t>(bytes.size())}); }
TensorView table_of(Pieces& pieces) {
  return view_of(reinterpret_cast<std::int64_t*>(pieces.data()),
                 {static_cast<std::int64_t>(pieces.size()), Wire::fields});
}

// Every upper half with the lower halves about which rounding turns, NaN and infinity among them.
Floats corners_of_bf16() {
  Floats values;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  return values;
}

TEST(HostWire, RoundsToBf16AsTheDefinitionDoesAndBack) {
  Host host;
  const Floats x = corners_of_bf16();
  const auto n = static_cast<std::int64_t>(x.size());
  Halves y(x.size());
  Floats back(x.size());
  host->wire->to_bf16(host.stream, {view(x, {1, n}), 0, halves(y, {1, n})});
  host->wire->from_bf16(host.stream, halves(y, {n}), flat(back));
  host.finish();
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i], reference::to_bf16(x[i])) << x[i];
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(back[i]));
    } else {
      ASSERT_EQ(back[i], reference::from_bf16(y[i]));
    }
  }
}

TEST(HostWire, TakesTheSameColumnsOfEveryRow) {
  Host host(2);
  const Floats x = random_floats(3 * 70000, 5);
  for (const auto& [first, columns] :
       {std::pair<std::int64_t, std::int64_t>{0, 70000}, {69999, 1}, {17, 40000}, {5, 0}}) {
    Halves y(static_cast<std::size_t>(3 * columns));
    host->wire->to_bf16(host.stream, {view(x, {3, 70000}), first, halves(y, {3, columns})});
    host.finish();
    for (std::int64_t i = 0; i < 3 * columns; ++i) {
      const std::int64_t from =
          i / std::max<std::int64_t>(columns, 1) * 70000 + first + i % std::max<std::int64_t>(columns, 1);
      ASSERT_EQ(y[static_cast<std::size_t>(i)], reference::to_bf16(x[static_cast<std::size_t>(from)])) << i;
    }
  }
}

// 1.0 and 383 times 2^-9: a bf16 running sum would stay 1.0.
TEST(HostWire, SumsWhatLandedInF32InRankOrderHoweverItIsCut) {
  constexpr std::int64_t ranks = 384, n = 1000;
  for (const std::int64_t chunk : {1, 7, 16, 255, 256, 257, 1000}) {
    Host host(2);
    Floats sum(n, 0.5f);
    for (std::int64_t at = 0; at < n; at += chunk) {
      const std::int64_t count = std::min(chunk, n - at);
      Halves landed(static_cast<std::size_t>(ranks * count), reference::to_bf16(0x1p-9f));
      for (std::int64_t i = 0; i < count; ++i) {  // the large term comes from another rank for every element
        landed[static_cast<std::size_t>((at + i) % ranks * count + i)] = reference::to_bf16(1.0f);
      }
      host->wire->landing_sum(host.stream, {halves(landed, {ranks, count}), flat(sum).slice(at, count), at % 2 == 1});
      host.finish();
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const bool added = i / chunk * chunk % 2 == 1;
      ASSERT_EQ(sum[static_cast<std::size_t>(i)], added ? 2.248046875f : 1.748046875f) << chunk << ' ' << i;
    }
  }
}

// In f32 1 + 2^-24 is 1, but 2^-24 + 2^-24 + 1 is more: the sum tells in which order it was made.
TEST(HostWire, SumsFromTheFirstRankToTheLast) {
  constexpr std::int64_t n = 300;
  const float large = 1, small = 0x1p-24f;
  for (const auto& [terms, want] : {std::pair{Floats{large, small, small}, 1.0f},
                                    {Floats{small, small, large}, 1 + 0x1p-23f},
                                    {Floats{large, small, small, -large, small}, small}}) {
    Host host(2);
    Halves landed;
    for (const float term : terms) landed.insert(landed.end(), n, reference::to_bf16(term));
    Floats sum(n, 0.0f);
    host->wire->landing_sum(host.stream, {halves(landed, {std::ssize(terms), n}), flat(sum), false});
    host.finish();
    EXPECT_EQ(sum, Floats(n, want));
  }
}

TEST(HostWire, SumsAsTheReferenceDoesBitForBit) {
  Host host(3);
  for (const auto& [ranks, n] : {std::pair<std::int64_t, std::int64_t>{0, 3}, {1, 0}, {1, 5}, {7, 40000}, {3, 257}}) {
    const Floats random = random_floats(ranks * n, 3);
    Halves landed;
    for (const float value : random) landed.push_back(reference::to_bf16(value));
    Floats got = random_floats(n, 4), want = got;
    host->wire->landing_sum(host.stream, {halves(landed, {ranks, n}), flat(got), true});
    host.finish();
    reference::landing_sum(ranks, n, landed.data(), want.data(), true);
    EXPECT_EQ(got, want);
  }
}

struct Quantised {
  Bytes bytes;
  Floats back;
};

Quantised round_trip(Host& host, Pieces pieces, const Floats& values, std::int64_t bytes) {
  Quantised result{Bytes(static_cast<std::size_t>(bytes), 0xee), nans(static_cast<std::int64_t>(values.size()))};
  host->wire->quantise(host.stream, table_of(pieces), flat(values), flat(result.bytes));
  host->wire->dequantise(host.stream, table_of(pieces), flat(result.bytes), flat(result.back));
  Halves narrow(values.size(), 0xffff);  // NaN, as what is not in any piece stays
  host->wire->dequantise(host.stream, table_of(pieces), flat(result.bytes),
                         halves(narrow, {static_cast<std::int64_t>(narrow.size())}));
  host.finish();
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    const float wide = result.back[i], value = reference::from_bf16(narrow[i]);
    EXPECT_TRUE(std::isnan(wide) ? std::isnan(value) : narrow[i] == reference::to_bf16(wide)) << wide << ' ' << value;
  }
  return result;
}

// A matrix of one block whose scale is 1.
Quantised one_block(const Floats& values) {
  Host host;
  Floats all = values;
  all.push_back(448);
  const auto n = static_cast<std::int64_t>(all.size());
  return round_trip(host, {{n, 0, n, 0, 0, n}}, all, n + 1);
}

TEST(HostWire, KeepsEveryE4m3ValueAndRoundsHalfWaysToEven) {
  for (int code = 0; code < 0x7f; code += 60) {  // a block is 128 wide
    Floats values, want;
    for (int c = code; c < std::min(code + 60, 0x7e); ++c) {
      const double low = reference::from_e4m3(static_cast<std::uint8_t>(c));
      const double high = reference::from_e4m3(static_cast<std::uint8_t>(c + 1));
      values.push_back(static_cast<float>(c % 2 ? low : -low));
      want.push_back(values.back());
      values.push_back(static_cast<float>((low + high) / 2));
      want.push_back(static_cast<float>(c % 2 ? high : low));
    }
    const Quantised got = one_block(values);
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(got.back[i], want[i]) << values[i];
  }
}

TEST(HostWire, MakesNanOfWhatIsNotFiniteAndKeepsTheRestOfTheBlock) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Quantised got = one_block({1, infinity, -2, -infinity, std::nanf(""), 3});
  EXPECT_EQ(got.back[0], 1);
  EXPECT_TRUE(std::isnan(got.back[1]));
  EXPECT_EQ(got.back[2], -2);
  EXPECT_TRUE(std::isnan(got.back[3]));
  EXPECT_TRUE(std::isnan(got.back[4]));
  EXPECT_EQ(got.back[5], 3);
}

TEST(HostWire, HoldsTheWholeRangeOfMagnitudes) {
  Host host;
  for (const float size : {0.0f, 1e-45f, 1e-38f, 1e-20f, 0.02f, 447.0f, 448.0f, 449.0f, 1e20f, 3e38f}) {
    const Floats values = {size, -size, size / 2};
    const Quantised got = round_trip(host, {{3, 0, 3, 0, 0, 3}}, values, 4);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(got.back[i], values[i], std::max(std::abs(values[i]) / 16, 1e-38f)) << size;
    }
  }
}

// Matrices cut at random places: the piece's own part of a block alone decides its scale.
TEST(HostWire, QuantisesPiecesOfMatricesAsTheReferenceDoes) {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 6; ++round) {
    Pieces pieces;
    std::int64_t values = 0, bytes = 0;
    for (int i = 0; i < 3; ++i) {
      const std::int64_t rows = 1 + below(200), columns = 1 + below(200), begin = below(rows * columns);
      Wire::BlockPiece piece{columns, begin, below(rows * columns - begin + 1), values, bytes, 0};
      values += piece.count + below(5);
      piece.scales = bytes + piece.count + below(3);
      bytes = piece.scales + Wire::scales_of(piece);
      pieces.push_back(piece);
    }
    Floats x = random_floats(values, static_cast<unsigned>(round), 0.1f);
    for (float& value : x) value *= random() % 7 == 0 ? 100.0f : 1.0f;
    Bytes want(static_cast<std::size_t>(bytes), 0xee);
    Floats back = nans(values);
    for (const Wire::BlockPiece& piece : pieces) {
      reference::quantise(piece, x.data(), want.data());
      reference::dequantise(piece, want.data(), back.data());
    }
    Host one, three(3);
    for (Host* host : {&one, &three}) {
      const Quantised got = round_trip(*host, pieces, x, bytes);
      ASSERT_EQ(got.bytes, want);
      for (const Wire::BlockPiece& piece : pieces) {
        for (std::int64_t i = piece.values; i < piece.values + piece.count; ++i) {
          ASSERT_EQ(got.back[static_cast<std::size_t>(i)], back[static_cast<std::size_t>(i)]);
        }
      }
    }
  }
}

TEST(HostWire, RefusesWhatDoesNotFit) {
  Host host;
  const Floats five(5), six(6);
  const Halves half(6);
  Bytes bytes(6);
  expect_refused(
      [&] {
        host->wire->to_bf16(host.stream, {view(five, {1, 5}), 0, halves(half, {2, 3})});
      },
      {"to_bf16", "y", "[2, 3]", "[1, 3]"});
  expect_refused(
      [&] {
        host->wire->to_bf16(host.stream, {view(five, {1, 5}), 3, halves(half, {1, 6})});
      },
      {"columns 3 to 9 of 5"});
  expect_refused(
      [&] {
        host->wire->landing_sum(host.stream, {halves(half, {2, 3}), flat(five), false});
      },
      {"landing_sum", "landed", "[2, 3]", "[2, 5]"});
  Pieces pieces = {{5, 0, 5, 0, 0, 6}};  // its scale lies behind the bytes
  host->wire->quantise(host.stream, table_of(pieces), flat(five), flat(bytes));
  expect_refused([&] { host.finish(); }, {"quantise", "1 scales at 6 of 6 bytes"});
}

}  // namespace
}  // namespace ananke::host
