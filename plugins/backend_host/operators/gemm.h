// Matrix products: OpenBLAS on one thread for one tile, the pool over tiles.
#pragma once

#include <cstdint>

#include "plugins/backend_host/thread_pool.h"

namespace ananke::host {

// A factor as it lies in memory, row-major, `stride` elements from row to row; `transposed`: used as its transpose.
struct Factor {
  const float* data;
  std::int64_t stride;
  bool transposed = false;
};

// c[m, n] = alpha a[m, k] b[k, n] + beta c. With beta 0, c is written only (its old content, NaN too, is without
// effect); with k 0 it is beta c. On the calling thread.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Factor& a, const Factor& b, float beta,
          float* c, std::int64_t c_stride);

// How an [m, n] product is cut into tiles: by its size alone, never by the number of threads.
struct Tiles {
  Tiles(std::int64_t m, std::int64_t n);
  std::int64_t count() const noexcept { return down * across; }
  std::int64_t m, n, rows, columns;  // of a tile
  std::int64_t down, across;         // tiles
};

// One tile of the product.
void gemm_tile(const Tiles& tiles, std::int64_t tile, std::int64_t k, float alpha, const Factor& a, const Factor& b,
               float beta, float* c, std::int64_t c_stride);

// The whole product, tiles shared among the pool's threads.
void gemm(ThreadPool& pool, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Factor& a,
          const Factor& b, float beta, float* c, std::int64_t c_stride);

}  // namespace ananke::host
