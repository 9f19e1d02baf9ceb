#include "plugins/backend_host/operators/add_rms_norm.h"

#include <cstring>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/carve.h"
#include "plugins/backend_host/operators/norm_math.h"
#include "plugins/backend_host/operators/row_math.h"
#include "plugins/backend_host/operators/validate.h"

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
  expect_rank(op, "x", a.x, 2);
  const Sizes n{a.x.shape[0], a.x.shape[1]};
  expect(op, "x", a.x, {n.rows, n.width});
  expect(op, "weight", a.weight, {n.width});
  expect(op, "y", a.y, {n.rows, n.width});
  if (expect_or_empty(op, "delta", a.delta, {n.rows, n.width})) {
    expect(op, "h", a.h, {n.rows, n.width});
  } else {
    expect_or_empty(op, "h", a.h, {n.rows, n.width});
  }
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
  expect_rank(op, "h", a.h, 2);
  const Sizes n{a.h.shape[0], a.h.shape[1]};
  expect(op, "h", a.h, {n.rows, n.width});
  expect(op, "weight", a.weight, {n.width});
  expect(op, "dy", a.dy, {n.rows, n.width});
  expect_or_empty(op, "dh_in", a.dh_in, {n.rows, n.width});
  expect(op, "dh", a.dh, {n.rows, n.width});
  expect(op, "dweight", a.dweight, {n.width});
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
