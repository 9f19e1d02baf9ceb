#include "plugins/backend_host/operators/newton_schulz.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/gemm.h"
#include "plugins/backend_host/operators/row_math.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::host {
namespace {

using Sizes = NewtonSchulz::Sizes;

constexpr std::int64_t wanted_tasks = 8;
constexpr std::int64_t largest_block = 256, smallest_block = 64;

// The lower triangle of an [s, s] product in square blocks: by its size alone, never by the number of threads.
struct Triangle {
  explicit Triangle(std::int64_t s) : size(s) {
    side = std::clamp((s / 4 + 15) / 16 * 16, smallest_block, largest_block);
    down = (s + side - 1) / side;
  }
  std::int64_t count() const { return down * (down + 1) / 2; }
  // Block row and column of the blocks in order (0,0), (1,0), (1,1), (2,0), ...
  std::pair<std::int64_t, std::int64_t> at(std::int64_t index) const {
    std::int64_t i = 0;
    while (index > i) index -= ++i;
    return {i, index};
  }
  std::int64_t size, side, down;
};

struct Layout {
  explicit Layout(const Sizes& n)
      : s(std::min(n.rows, n.columns)),
        l(std::max(n.rows, n.columns)),
        transposed(n.rows > n.columns),
        triangle(s),
        tiles(s, l),
        together(
            std::min(n.count, (wanted_tasks + triangle.count() - 1) / std::max<std::int64_t>(1, triangle.count()))) {}
  std::int64_t s, l;  // short and long side
  bool transposed;
  Triangle triangle;
  Tiles tiles;
  std::int64_t together;  // matrices computed at a time
};

struct Scratch {
  float *x, *y;  // [together, s, l]
  float *a, *b;  // [together, s, s]
};

Scratch layout_scratch(Carve& carve, const Layout& n) {
  Scratch scratch{};
  scratch.x = carve.take<float>(n.together * n.s * n.l);
  scratch.y = carve.take<float>(n.together * n.s * n.l);
  scratch.a = carve.take<float>(n.together * n.s * n.s);
  scratch.b = carve.take<float>(n.together * n.s * n.s);
  return scratch;
}

// To the nearest bf16, ties to even.
float rounded(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return value;  // not a number
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

void round_rows(std::int64_t rows, std::int64_t columns, std::int64_t stride, float* data) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) data[i * stride + j] = rounded(data[i * stride + j]);
  }
}

// to[c, r] = from[r, c], in blocks that stay in the cache; rows of both `*_stride` apart.
void transpose(std::int64_t rows, std::int64_t columns, const float* from, std::int64_t from_stride, float* to,
               std::int64_t to_stride) {
  constexpr std::int64_t side = 16;
  for (std::int64_t r0 = 0; r0 < rows; r0 += side) {
    for (std::int64_t c0 = 0; c0 < columns; c0 += side) {
      for (std::int64_t r = r0; r < std::min(r0 + side, rows); ++r) {
        for (std::int64_t c = c0; c < std::min(c0 + side, columns); ++c)
          to[c * to_stride + r] = from[r * from_stride + c];
      }
    }
  }
}

// One group of matrices on its way through the iteration.
class Iteration {
 public:
  Iteration(ThreadPool& pool, const NewtonSchulz::Arguments& a, const Layout& n, const Scratch& scratch)
      : pool_(pool), arguments_(a), n_(n), scratch_(scratch), bf16_(a.precision == NewtonSchulz::Precision::bf16) {}

  // In place on `count` matrices from `matrices` on.
  void run(float* matrices, std::int64_t count) {
    pool_.run(count, [&](std::int64_t i, int) { load(matrices + i * area(), scratch_.x + i * area()); });
    for (int step = 0; step < arguments_.steps; ++step) {
      symmetric(count, scratch_.x, n_.l, 1, nullptr, 0, scratch_.a);
      symmetric(count, scratch_.a, n_.s, c(), scratch_.a, b(), scratch_.b);
      advance(count);
      std::swap(scratch_.x, scratch_.y);
    }
    pool_.run(count, [&](std::int64_t i, int) { store(scratch_.x + i * area(), matrices + i * area()); });
  }

 private:
  std::int64_t area() const { return n_.s * n_.l; }
  float b() const { return static_cast<float>(arguments_.b); }
  float c() const { return static_cast<float>(arguments_.c); }

  void load(float* matrix, float* x) const {
    if (bf16_) round_rows(1, area(), area(), matrix);
    if (n_.transposed) {
      transpose(n_.l, n_.s, matrix, n_.s, x, n_.l);
    } else {
      std::copy(matrix, matrix + area(), x);
    }
    auto norm = static_cast<float>(std::sqrt(dot(x, x, area())));
    if (bf16_) norm = rounded(norm);
    const float divisor = norm > static_cast<float>(arguments_.eps) ? norm : static_cast<float>(arguments_.eps);
#pragma omp simd
    for (std::int64_t i = 0; i < area(); ++i) x[i] /= divisor;
    if (bf16_) round_rows(1, area(), area(), x);
  }
  void store(const float* x, float* matrix) const {
    if (n_.transposed) {
      transpose(n_.s, n_.l, x, n_.l, matrix, n_.s);
    } else {
      std::copy(x, x + area(), matrix);
    }
  }

  // out = beta add + alpha m m^T, per matrix; m is [s, k], add and out are symmetric [s, s].
  void symmetric(std::int64_t count, const float* m, std::int64_t k, float alpha, const float* add, float beta,
                 float* out) const {
    const Triangle& t = n_.triangle;
    pool_.run(count * t.count(), [&](std::int64_t task, int) {
      const std::int64_t matrix = task / t.count(), square = n_.s * n_.s;
      const auto [i, j] = t.at(task % t.count());
      const std::int64_t row = i * t.side, column = j * t.side;
      const std::int64_t rows = std::min(t.side, n_.s - row), columns = std::min(t.side, n_.s - column);
      const float* from = m + matrix * n_.s * k;
      float* to = out + matrix * square + row * n_.s + column;
      for (std::int64_t r = 0; add && r < rows; ++r) {
        const float* line = add + matrix * square + (row + r) * n_.s + column;
        std::copy(line, line + columns, to + r * n_.s);
      }
      gemm(rows, columns, k, alpha, {from + row * k, k}, {from + column * k, k, true}, beta, to, n_.s);
      if (bf16_) round_rows(rows, columns, n_.s, to);
      if (i != j) transpose(rows, columns, to, n_.s, out + matrix * square + column * n_.s + row, n_.s);
    });
  }

  // y = a x + b x, per matrix.
  void advance(std::int64_t count) const {
    const Tiles& tiles = n_.tiles;
    pool_.run(count * tiles.count(), [&](std::int64_t task, int) {
      const std::int64_t matrix = task / tiles.count(), tile = task % tiles.count();
      const std::int64_t row = tile / tiles.across * tiles.rows, column = tile % tiles.across * tiles.columns;
      const std::int64_t rows = std::min(tiles.rows, n_.s - row), columns = std::min(tiles.columns, n_.l - column);
      const float* x = scratch_.x + matrix * area();
      float* y = scratch_.y + matrix * area();
      for (std::int64_t r = row; r < row + rows; ++r) {
        std::copy(x + r * n_.l + column, x + r * n_.l + column + columns, y + r * n_.l + column);
      }
      gemm_tile(tiles, tile, n_.s, 1, {scratch_.b + matrix * n_.s * n_.s, n_.s}, {x, n_.l},
                static_cast<float>(arguments_.a), y, n_.l);
      if (bf16_) round_rows(rows, columns, n_.l, y + row * n_.l + column);
    });
  }

  ThreadPool& pool_;
  const NewtonSchulz::Arguments& arguments_;
  const Layout& n_;
  Scratch scratch_;
  bool bf16_;
};

}  // namespace

std::size_t HostNewtonSchulz::workspace(const Sizes& s) const {
  Carve carve;
  layout_scratch(carve, Layout(s));
  return carve.used();
}

void HostNewtonSchulz::run(Stream& stream, const Arguments& a) {
  const Sizes n = arguments::check(a);
  expect_region("newton_schulz", "workspace", a.workspace, workspace(n));
  if (a.matrices.elements() == 0) return;
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    if (*a.finite.as<std::int32_t>() == 0) return;
    const Layout layout(n);
    Carve carve(a.workspace);
    const Scratch scratch = layout_scratch(carve, layout);
    for (std::int64_t first = 0; first < n.count; first += layout.together) {
      Iteration iteration(pool, a, layout, scratch);
      iteration.run(a.matrices.as<float>() + first * n.rows * n.columns, std::min(layout.together, n.count - first));
    }
  });
}

}  // namespace ananke::host
