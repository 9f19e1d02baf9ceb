#include "plugins/backend_host/operators/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <limits>

#include "runtime/base/error.h"

namespace ananke::host {
namespace {

blasint blas_int(std::int64_t value) {
  if constexpr (sizeof(blasint) < sizeof(std::int64_t)) {
    ANANKE_CHECK(value <= std::numeric_limits<blasint>::max(), "a matrix dimension of {} is too large for BLAS", value);
  }
  return static_cast<blasint>(value);
}

Factor shifted(const Factor& f, std::int64_t row, std::int64_t column) {
  const std::int64_t at = f.transposed ? column * f.stride + row : row * f.stride + column;
  return {f.data + at, f.stride, f.transposed};
}

constexpr std::int64_t wanted_tiles = 8;
constexpr std::int64_t largest_side = 512;
constexpr std::int64_t smallest_side = 64;

}  // namespace

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Factor& a, const Factor& b, float beta,
          float* c, std::int64_t c_stride) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (std::int64_t i = 0; i < m && beta != 1; ++i) {
      for (std::int64_t j = 0; j < n; ++j) c[i * c_stride + j] = beta == 0 ? 0 : beta * c[i * c_stride + j];
    }
    return;
  }
  cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
              blas_int(m), blas_int(n), blas_int(k), alpha, a.data, blas_int(a.stride), b.data, blas_int(b.stride),
              beta, c, blas_int(c_stride));
}

Tiles::Tiles(std::int64_t m_, std::int64_t n_) : m(m_), n(n_), rows(largest_side), columns(largest_side) {
  const auto cuts = [](std::int64_t size, std::int64_t side) { return (size + side - 1) / side; };
  // Halve the longer side of a tile until there are enough tiles to share, but not to crumbs.
  while (cuts(m, rows) * cuts(n, columns) < wanted_tiles) {
    const std::int64_t height = std::min(rows, m), width = std::min(columns, n);
    if (std::max(height, width) <= smallest_side) break;
    if (height >= width) {
      rows = std::max(smallest_side, (height / 2 + 15) / 16 * 16);
    } else {
      columns = std::max(smallest_side, (width / 2 + 15) / 16 * 16);
    }
  }
  down = cuts(m, rows);
  across = cuts(n, columns);
}

void gemm_tile(const Tiles& tiles, std::int64_t tile, std::int64_t k, float alpha, const Factor& a, const Factor& b,
               float beta, float* c, std::int64_t c_stride) {
  const std::int64_t row = tile / tiles.across * tiles.rows, column = tile % tiles.across * tiles.columns;
  gemm(std::min(tiles.rows, tiles.m - row), std::min(tiles.columns, tiles.n - column), k, alpha, shifted(a, row, 0),
       shifted(b, 0, column), beta, c + row * c_stride + column, c_stride);
}

void gemm(ThreadPool& pool, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Factor& a,
          const Factor& b, float beta, float* c, std::int64_t c_stride) {
  const Tiles tiles(m, n);
  pool.run(tiles.count(), [&](std::int64_t tile, int) { gemm_tile(tiles, tile, k, alpha, a, b, beta, c, c_stride); });
}

}  // namespace ananke::host
