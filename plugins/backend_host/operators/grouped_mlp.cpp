#include "plugins/backend_host/operators/grouped_mlp.h"

#include <algorithm>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/gemm.h"
#include "plugins/backend_host/operators/row_math.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::host {
namespace {

// Rows of one task at most, from the rows in use: enough tasks to share, enough rows for fast products.
std::int64_t rows_per_task(std::int64_t used) {
  constexpr std::int64_t wanted_tasks = 8, fewest = 64, most = 256;
  return std::clamp((used / wanted_tasks + 31) / 32 * 32, fewest, most);
}

struct Saved {
  float *gate, *up;  // outputs, [R, F]
};
struct Scratch {
  float *middle, *dgate, *dup;  // [R, F]: silu(gate) * up; gradients of gate's and up's outputs
  std::int64_t* first_task;     // [G + 1]: tasks of the groups before
};

Saved layout_saved(Carve& carve, const GroupedMlp::Sizes& s) {
  Saved saved{};
  saved.gate = carve.take<float>(s.rows * s.width);
  saved.up = carve.take<float>(s.rows * s.width);
  return saved;
}

Scratch layout_scratch(Carve& carve, const GroupedMlp::Sizes& s) {
  Scratch scratch{};
  scratch.middle = carve.take<float>(s.rows * s.width);
  scratch.dgate = carve.take<float>(s.rows * s.width);
  scratch.dup = carve.take<float>(s.rows * s.width);
  scratch.first_task = carve.take<std::int64_t>(s.groups + 1);
  return scratch;
}

const float* matrix(const MatrixStack& stack, std::int64_t group) {
  return stack.first.as<float>() + group * stack.stride;
}
float* matrix_out(const MatrixStack& stack, std::int64_t group) {
  return stack.first.as<float>() + group * stack.stride;
}

void check_offsets(const GroupedMlp::Sizes& n, const std::int32_t* offsets) {
  ANANKE_CHECK(offsets[0] == 0, "grouped_mlp: offsets begin at {}", offsets[0]);
  for (std::int64_t g = 0; g < n.groups; ++g) {
    ANANKE_CHECK(offsets[g] <= offsets[g + 1] && offsets[g + 1] <= n.rows,
                 "grouped_mlp: group {} has rows [{}, {}) of {}", g, offsets[g], offsets[g + 1], n.rows);
  }
}

// Runs body(group, begin, end) over pieces of at most rows_per_task() rows that lie in one group.
template <class Body>
void for_row_pieces(ThreadPool& pool, std::int64_t groups, const std::int32_t* offsets, std::int64_t* first_task,
                    const Body& body) {
  const std::int64_t piece = rows_per_task(offsets[groups]);
  first_task[0] = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    first_task[g + 1] = first_task[g] + (offsets[g + 1] - offsets[g] + piece - 1) / piece;
  }
  pool.run(first_task[groups], [&](std::int64_t task, int) {
    const std::int64_t group = std::upper_bound(first_task, first_task + groups + 1, task) - first_task - 1;
    const std::int64_t begin = offsets[group] + (task - first_task[group]) * piece;
    body(group, begin, std::min<std::int64_t>(begin + piece, offsets[group + 1]));
  });
}

void activate(std::int64_t count, const float* gate, const float* up, float* middle) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) middle[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i];
}

// One row, whose result goes on with `weight`. d silu(z) / dz = s (1 + z (1 - s)) with s = 1 / (1 + e^-z). Also makes
// weight x `middle` again, for down's gradient. dgate holds the gradient of weight x `middle` when called. Returns the
// weight's gradient.
double activate_backward(std::int64_t count, float weight, const float* gate, const float* up, float* middle,
                         float* dgate, float* dup) {
  double product = 0;
#pragma omp simd reduction(+ : product)
  for (std::int64_t i = 0; i < count; ++i) {
    const float sigmoid = 1.0f / (1.0f + exp_of(-gate[i]));
    const float silu = gate[i] * sigmoid, unweighted = dgate[i], d = weight * unweighted;
    product += static_cast<double>(silu * up[i]) * static_cast<double>(unweighted);
    middle[i] = weight * (silu * up[i]);
    dup[i] = d * silu;
    dgate[i] = d * up[i] * (sigmoid * (1.0f + gate[i] * (1.0f - sigmoid)));
  }
  return product;
}

}  // namespace

std::size_t HostGroupedMlp::saved(const Sizes& s) const {
  Carve carve;
  layout_saved(carve, s);
  return carve.used();
}

std::size_t HostGroupedMlp::workspace(const Sizes& s) const {
  Carve carve;
  layout_scratch(carve, s);
  return carve.used();
}

void HostGroupedMlp::forward(Stream& stream, const Forward& a) {
  constexpr const char* op = "grouped_mlp forward";
  const Sizes n = arguments::check(a);
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    Carve saved_carve(a.saved), scratch_carve(a.workspace);
    const Saved saved = layout_saved(saved_carve, n);
    const Scratch scratch = layout_scratch(scratch_carve, n);
    const std::int32_t* offsets = a.offsets.as<std::int32_t>();
    check_offsets(n, offsets);
    for_row_pieces(
        pool, n.groups, offsets, scratch.first_task, [&](std::int64_t g, std::int64_t begin, std::int64_t end) {
          const std::int64_t rows = end - begin, inner = begin * n.width;
          const Factor x{a.x.as<float>() + begin * n.hidden, n.hidden};
          gemm(rows, n.width, n.hidden, 1, x, {matrix(a.weights.gate, g), n.hidden, true}, 0, saved.gate + inner,
               n.width);
          gemm(rows, n.width, n.hidden, 1, x, {matrix(a.weights.up, g), n.hidden, true}, 0, saved.up + inner, n.width);
          if (!a.y) return;
          activate(rows * n.width, saved.gate + inner, saved.up + inner, scratch.middle + inner);
          gemm(rows, n.hidden, n.width, 1, {scratch.middle + inner, n.width},
               {matrix(a.weights.down, g), n.width, true}, 0, a.y.as<float>() + begin * n.hidden, n.hidden);
        });
  });
}

namespace {

// dx, and what the gradients of the weights are made of.
void backward_rows(ThreadPool& pool, const GroupedMlp::Sizes& n, const GroupedMlp::Backward& a, const Saved& saved,
                   const Scratch& scratch, const std::int32_t* offsets) {
  for_row_pieces(
      pool, n.groups, offsets, scratch.first_task, [&](std::int64_t g, std::int64_t begin, std::int64_t end) {
        const std::int64_t rows = end - begin, inner = begin * n.width;
        float* dx = a.dx.as<float>() + begin * n.hidden;
        gemm(rows, n.width, n.hidden, 1, {a.dy.as<float>() + begin * n.hidden, n.hidden},
             {matrix(a.weights.down, g), n.width}, 0, scratch.dgate + inner, n.width);
        for (std::int64_t r = begin; r < end; ++r) {
          const std::int64_t at = r * n.width;
          const double d_weight =
              activate_backward(n.width, a.row_weights ? a.row_weights.as<float>()[r] : 1.0f, saved.gate + at,
                                saved.up + at, scratch.middle + at, scratch.dgate + at, scratch.dup + at);
          if (a.d_row_weights) a.d_row_weights.as<float>()[r] = static_cast<float>(d_weight);
        }
        gemm(rows, n.hidden, n.width, 1, {scratch.dgate + inner, n.width}, {matrix(a.weights.gate, g), n.hidden}, 0, dx,
             n.hidden);
        gemm(rows, n.hidden, n.width, 1, {scratch.dup + inner, n.width}, {matrix(a.weights.up, g), n.hidden}, 1, dx,
             n.hidden);
      });
}

void backward_weights(ThreadPool& pool, const GroupedMlp::Sizes& n, const GroupedMlp::Backward& a,
                      const Scratch& scratch, const std::int32_t* offsets) {
  const Tiles wide(n.width, n.hidden), tall(n.hidden, n.width);
  const std::int64_t per_group = 2 * wide.count() + tall.count();
  const float beta = a.overwrite ? 0.0f : 1.0f;
  const auto clear = [&](const MatrixStack& stack, std::int64_t g) {
    std::fill_n(matrix_out(stack, g), n.width * n.hidden, 0.0f);
  };
  pool.run(n.groups * per_group, [&](std::int64_t task, int) {
    const std::int64_t g = task / per_group, tile = task % per_group;
    const std::int64_t begin = offsets[g], rows = offsets[g + 1] - begin;
    if (rows == 0) {
      if (tile > 0 || !a.overwrite) return;
      for (const MatrixStack* stack : {&a.gradient.gate, &a.gradient.up, &a.gradient.down}) clear(*stack, g);
      return;
    }
    const Factor x{a.x.as<float>() + begin * n.hidden, n.hidden};
    if (tile < wide.count()) {
      gemm_tile(wide, tile, rows, 1, {scratch.dgate + begin * n.width, n.width, true}, x, beta,
                matrix_out(a.gradient.gate, g), n.hidden);
    } else if (tile < 2 * wide.count()) {
      gemm_tile(wide, tile - wide.count(), rows, 1, {scratch.dup + begin * n.width, n.width, true}, x, beta,
                matrix_out(a.gradient.up, g), n.hidden);
    } else {
      gemm_tile(tall, tile - 2 * wide.count(), rows, 1, {a.dy.as<float>() + begin * n.hidden, n.hidden, true},
                {scratch.middle + begin * n.width, n.width}, beta, matrix_out(a.gradient.down, g), n.width);
    }
  });
}

}  // namespace

void HostGroupedMlp::backward(Stream& stream, const Backward& a) {
  constexpr const char* op = "grouped_mlp backward";
  const Sizes n = arguments::check(a);
  expect_region(op, "saved", a.saved, saved(n));
  expect_region(op, "workspace", a.workspace, workspace(n));
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    Carve saved_carve(a.saved), scratch_carve(a.workspace);
    const Saved saved = layout_saved(saved_carve, n);
    const Scratch scratch = layout_scratch(scratch_carve, n);
    const std::int32_t* offsets = a.offsets.as<std::int32_t>();
    check_offsets(n, offsets);
    backward_rows(pool, n, a, saved, scratch, offsets);
    backward_weights(pool, n, a, scratch, offsets);
  });
}

}  // namespace ananke::host
