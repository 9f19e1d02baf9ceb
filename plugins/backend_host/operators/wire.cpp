#include "plugins/backend_host/operators/wire.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "plugins/backend_host/host_stream.h"
#include "runtime/base/error.h"
#include "runtime/operators/arguments.h"

namespace ananke::host {
namespace {

constexpr std::int64_t elements_per_task = 1 << 15;

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

std::uint16_t bf16_of(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<std::uint16_t>(nan ? 0x7fc0 : rounded);
}

float float_of(std::uint16_t bf16) { return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16); }

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                       : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      table[static_cast<std::size_t>(code)] = code & 0x80 ? -size : size;
    }
    table[0x7f] = table[0xff] = std::numeric_limits<float>::quiet_NaN();
    return table;
  }();
  return values;
}

// |x| at most 448, or not finite.
std::uint8_t e4m3_of(float x) {
  const std::uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
  if (size >= 0x7f800000) return 0x7f;
  if (size < bits_of(0x1p-6f)) {  // below the normal numbers steps are 2^-9; adding 2^14 leaves no finer ones
    return static_cast<std::uint8_t>(sign | (bits_of(std::bit_cast<float>(size) + 0x1p14f) - bits_of(0x1p14f)));
  }
  const std::uint32_t rounded = size + 0x7ffff + (size >> 20 & 1);  // three mantissa bits stay
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - ((127 - 7) << 3)));
}

// Exponent + 127 of the smallest power of two s with largest / s <= 448 = 0.875 x 2^9.
std::uint8_t scale_of(float largest) {
  if (largest == 0) return 127;
  int exponent = 0;
  const float fraction = std::frexp(largest, &exponent);
  return static_cast<std::uint8_t>(std::max(exponent - (fraction <= 0.875f ? 9 : 8), -126) + 127);
}

// The part of a row that lies in one block and in the piece.
struct Run {
  std::int64_t first, count;  // within the piece
  std::int64_t scale;         // within the piece's scales
};

template <class Visit>
void visit_runs(const Wire::BlockPiece& piece, const Visit& visit) {
  const std::int64_t first_row = piece.begin / piece.columns / Wire::block;
  const std::int64_t across = (piece.columns + Wire::block - 1) / Wire::block;
  for (std::int64_t i = 0; i < piece.count;) {
    const std::int64_t row = (piece.begin + i) / piece.columns, column = (piece.begin + i) % piece.columns;
    const std::int64_t end = std::min((column / Wire::block + 1) * Wire::block, piece.columns);
    const std::int64_t count = std::min(end - column, piece.count - i);
    visit(Run{i, count, (row / Wire::block - first_row) * across + column / Wire::block});
    i += count;
  }
}

// largest: scratch, of each block.
void quantise_piece(const Wire::BlockPiece& piece, const float* values, std::uint8_t* bytes,
                    std::vector<float>& largest) {
  const float* x = values + piece.values;
  std::uint8_t* scales = bytes + piece.scales;
  std::uint8_t* codes = bytes + piece.codes;
  largest.assign(static_cast<std::size_t>(Wire::scales_of(piece)), 0.0f);
  visit_runs(piece, [&](const Run& run) {
    std::uint32_t most = 0;  // magnitudes are ordered as their bits are
    for (std::int64_t i = run.first; i < run.first + run.count; ++i) {
      const std::uint32_t size = bits_of(x[i]) & 0x7fffffff;
      most = std::max(most, size < 0x7f800000 ? size : 0u);
    }
    float& block = largest[static_cast<std::size_t>(run.scale)];
    block = std::max(block, std::bit_cast<float>(most));
  });
  for (std::size_t block = 0; block < largest.size(); ++block) scales[block] = scale_of(largest[block]);
  visit_runs(piece, [&](const Run& run) {
    const float inverse = std::ldexp(1.0f, 127 - scales[run.scale]);
    for (std::int64_t i = run.first; i < run.first + run.count; ++i) codes[i] = e4m3_of(x[i] * inverse);
  });
}

float stored(float value, float) { return value; }
std::uint16_t stored(float value, std::uint16_t) { return bf16_of(value); }

// T: float, or uint16_t that holds bf16.
template <class T>
void dequantise_piece(const Wire::BlockPiece& piece, const std::uint8_t* bytes, T* values) {
  const std::array<float, 256>& table = e4m3_values();
  const std::uint8_t* codes = bytes + piece.codes;
  T* x = values + piece.values;
  visit_runs(piece, [&](const Run& run) {
    const float scale = std::ldexp(1.0f, bytes[piece.scales + run.scale] - 127);
    for (std::int64_t i = run.first; i < run.first + run.count; ++i) x[i] = stored(table[codes[i]] * scale, T{});
  });
}

std::span<const Wire::BlockPiece> pieces_in(const TensorView& table) {
  return {reinterpret_cast<const Wire::BlockPiece*>(table.as<std::int64_t>()),
          static_cast<std::size_t>(table.shape[0])};
}

void check_piece(const char* op, const Wire::BlockPiece& piece, const TensorView& values, const TensorView& bytes) {
  ANANKE_CHECK(
      piece.columns > 0 && piece.begin >= 0 && piece.count >= 0 && piece.values >= 0 && piece.codes >= 0 &&
          piece.scales >= 0 && piece.values + piece.count <= values.elements() &&
          piece.codes + piece.count <= bytes.elements() && piece.scales + Wire::scales_of(piece) <= bytes.elements(),
      "{}: a piece of {} elements at {} of {} values, codes at {} and {} scales at {} of {} bytes", op, piece.count,
      piece.values, values.elements(), piece.codes, Wire::scales_of(piece), piece.scales, bytes.elements());
}

}  // namespace

void HostWire::to_bf16(Stream& stream, const ToBf16& a) {
  arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, a] {
    const std::int64_t columns = a.y.shape[1], blocks = (columns + elements_per_task - 1) / elements_per_task;
    pool.run(a.x.shape[0] * blocks, [&](std::int64_t task, int) {
      const std::int64_t row = task / blocks, begin = task % blocks * elements_per_task;
      const std::int64_t end = std::min(begin + elements_per_task, columns);
      const float* from = a.x.as<float>() + row * a.x.shape[1] + a.first;
      auto* to = static_cast<std::uint16_t*>(a.y.data) + row * columns;
      for (std::int64_t i = begin; i < end; ++i) to[i] = bf16_of(from[i]);
    });
  });
}

void HostWire::from_bf16(Stream& stream, const TensorView& x, const TensorView& y) {
  arguments::check_from_bf16(x, y);
  HostStream::of(stream).enqueue([&pool = pool_, x, y] {
    const auto* from = static_cast<const std::uint16_t*>(x.data);
    float* to = y.as<float>();
    pool.run_blocks(x.elements(), elements_per_task, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = float_of(from[i]);
    });
  });
}

void HostWire::landing_sum(Stream& stream, const LandingSum& a) {
  arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, a] {
    const std::int64_t ranks = a.landed.shape[0], n = a.sum.elements();
    const auto* landed = static_cast<const std::uint16_t*>(a.landed.data);
    float* sum = a.sum.as<float>();
    constexpr std::int64_t width = 256;  // of sums under way, on the stack
    pool.run_blocks(n, elements_per_task, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; at += width) {
        const std::int64_t count = std::min(width, end - at);
        float total[width] = {};
        for (std::int64_t p = 0; p < ranks; ++p) {
          const std::uint16_t* term = landed + p * n + at;
          for (std::int64_t i = 0; i < count; ++i) total[i] += float_of(term[i]);
        }
        for (std::int64_t i = 0; i < count; ++i) sum[at + i] = a.add ? sum[at + i] + total[i] : total[i];
      }
    });
  });
}

void HostWire::quantise(Stream& stream, const TensorView& pieces, const TensorView& values, const TensorView& bytes) {
  arguments::check_pieces("quantise", pieces, values, bytes);
  HostStream::of(stream).enqueue([&pool = pool_, pieces, values, bytes] {
    std::vector<std::vector<float>> largest(static_cast<std::size_t>(pool.threads()));
    pool.run(pieces.shape[0], [&](std::int64_t index, int worker) {
      const Wire::BlockPiece& piece = pieces_in(pieces)[static_cast<std::size_t>(index)];
      check_piece("quantise", piece, values, bytes);
      quantise_piece(piece, values.as<float>(), bytes.as<std::uint8_t>(), largest[static_cast<std::size_t>(worker)]);
    });
  });
}

void HostWire::dequantise(Stream& stream, const TensorView& pieces, const TensorView& bytes, const TensorView& values) {
  arguments::check_pieces("dequantise", pieces, values, bytes, values.dtype == DType::bf16 ? DType::bf16 : DType::f32);
  HostStream::of(stream).enqueue([&pool = pool_, pieces, values, bytes] {
    pool.run(pieces.shape[0], [&](std::int64_t index, int) {
      const Wire::BlockPiece& piece = pieces_in(pieces)[static_cast<std::size_t>(index)];
      check_piece("dequantise", piece, values, bytes);
      if (values.dtype == DType::bf16) {
        dequantise_piece(piece, bytes.as<std::uint8_t>(), static_cast<std::uint16_t*>(values.data));
      } else {
        dequantise_piece(piece, bytes.as<std::uint8_t>(), values.as<float>());
      }
    });
  });
}

}  // namespace ananke::host
