#include <cblas.h>

#include <cmath>
#include <cstdint>
#include <mutex>
#include <vector>

#include "plugins/backend_host/operators/checks.h"
#include "plugins/backend_host/operators/gemm.h"
#include "runtime/base/error.h"

namespace ananke::host {
namespace {

std::vector<float> pattern(std::int64_t n, std::uint32_t seed) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / 16777216.0f - 0.5f;
  }
  return values;
}

// Largest error among a fifth of a product's elements against plain loops in f64.
double error_of(std::int64_t m, std::int64_t n, std::int64_t k, bool transposed_a, bool transposed_b) {
  const std::vector<float> a = pattern(m * k, 1), b = pattern(k * n, 2);
  std::vector<float> c(static_cast<std::size_t>(m * n), 7.0f);
  gemm(m, n, k, 1, {a.data(), transposed_a ? m : k, transposed_a}, {b.data(), transposed_b ? k : n, transposed_b}, 0,
       c.data(), n);
  double worst = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = i * 2 % 5; j < n; j += 5) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum += static_cast<double>(a[transposed_a ? l * m + i : i * k + l]) * b[transposed_b ? j * k + l : l * n + j];
      }
      const double error = std::abs(sum - static_cast<double>(c[i * n + j]));
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

}  // namespace

void check_blas() {
  static std::once_flag once;  // OpenBLAS's thread count is one for the process, and setting it is not thread-safe
  std::call_once(once, [] { openblas_set_num_threads(1); });
  struct Case {
    std::int64_t m, n, k;
  };
  // Small products have kernels of their own in OpenBLAS; the last one is past them (100^3).
  for (const Case& c : {Case{67, 35, 130}, Case{5, 129, 33}, Case{131, 137, 71}}) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      const double error = error_of(c.m, c.n, c.k, transposes & 1, transposes & 2);
      if (error < 1e-4) continue;
      fail(ErrorKind::resource,
           "OpenBLAS computes wrong products on this processor: sgemm of {} x {} x {} is off by {} (kernels: {}, {}); "
           "set OPENBLAS_CORETYPE, for example to HASWELL on x86-64 or ARMV8 on aarch64, or install a newer OpenBLAS",
           c.m, c.n, c.k, error, openblas_get_corename(), openblas_get_config());
    }
  }
}

}  // namespace ananke::host
