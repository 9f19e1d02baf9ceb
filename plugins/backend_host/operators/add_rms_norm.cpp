#include "plugins/backend_host/operators/add_rms_norm.h"

#include <cstring>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/norm_math.h"
#include "plugins/backend_host/operators/row_math.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::host {
namespace {

// Rows of one task, and of one partial sum of dweight.
constexpr std::int64_t rows_per_block = 64;

std::int64_t blocks_of(std::int64_t rows) { return (rows + rows_per_block - 1) / rows_per_block; }

// h = x + delta; h may be x. Nothing to do where there is no delta and h is x or absent.
void add_row(std::int64_t width, const float* x, const float* delta, float* h) {
  if (delta) {
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j) h[j] = x[j] + delta[j];
  } else if (h && h != x) {
    std::memcpy(h, x, static_cast<std::size_t>(width) * sizeof(float));
  }
}

float* at(const TensorView& view, std::int64_t element) { return view ? view.as<float>() + element : nullptr; }

}  // namespace

std::size_t HostAddRmsNorm::saved(const Sizes& s) const {
  Carve carve;
  carve.take<float>(s.rows);
  return carve.used();
}

std::size_t HostAddRmsNorm::workspace(const Sizes& s) const {
  Carve carve;
  carve.take<float>(blocks_of(s.rows) * s.width);
  return carve.used();
}

void HostAddRmsNorm::forward(Stream& stream, const Forward& a) {
  constexpr const char* op = "add_rms_norm forward";
  const Sizes n = arguments::check(a);
  expect_region(op, "saved", a.saved, saved(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    float* inverse = Carve(a.saved).take<float>(n.rows);
    const float* weight = a.weight.as<float>();
    pool.run_blocks(n.rows, rows_per_block, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        add_row(n.width, at(a.x, t * n.width), at(a.delta, t * n.width), at(a.h, t * n.width));
        const float* h = at(a.delta ? a.h : a.x, t * n.width);
        inverse[t] = inverse_rms(n.width, a.eps, h);
        normalise_row(n.width, inverse[t], h, weight, at(a.y, t * n.width));
      }
    });
  });
}

void HostAddRmsNorm::backward(Stream& stream, const Backward& a) {
  constexpr const char* op = "add_rms_norm backward";
  const Sizes n = arguments::check(a);
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const float* inverse = Carve(a.saved).take<float>(n.rows);
    float* partial = Carve(a.workspace).take<float>(blocks_of(n.rows) * n.width);
    const float* weight = a.weight.as<float>();
    pool.run_blocks(n.rows, rows_per_block, [&](std::int64_t begin, std::int64_t end) {
      float* dweight = partial + begin / rows_per_block * n.width;
      std::memset(dweight, 0, static_cast<std::size_t>(n.width) * sizeof(float));
      for (std::int64_t t = begin; t < end; ++t) {
        normalise_row_backward(n.width, inverse[t], at(a.h, t * n.width), weight, at(a.dy, t * n.width),
                               at(a.dh_in, t * n.width), at(a.dh, t * n.width), dweight);
      }
    });
    add_partial_sums(pool, blocks_of(n.rows), n.width, n.width, partial, a.dweight.as<float>());
  });
}

}  // namespace ananke::host
