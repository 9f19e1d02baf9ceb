#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/grouped_mlp.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

using Sizes = GroupedMlp::Sizes;
using Ragged = Product::Ragged;

constexpr int threads = 256;

struct Saved {
  std::byte *gate, *up;  // outputs, [R, F]
};
struct Scratch {
  std::byte *middle, *dgate, *dup;  // [R, F]: silu(gate) * up; gradients of gate's and up's outputs
};

Saved layout_saved(Carve& carve, const Sizes& s, DType elements) {
  const std::int64_t bytes = s.rows * s.width * static_cast<std::int64_t>(size_of(elements));
  Saved saved{};
  saved.gate = carve.take<std::byte>(bytes);
  saved.up = carve.take<std::byte>(bytes);
  return saved;
}

Scratch layout_scratch(Carve& carve, const Sizes& s, DType elements) {
  const std::int64_t bytes = s.rows * s.width * static_cast<std::int64_t>(size_of(elements));
  Scratch scratch{};
  scratch.middle = carve.take<std::byte>(bytes);
  scratch.dgate = carve.take<std::byte>(bytes);
  scratch.dup = carve.take<std::byte>(bytes);
  return scratch;
}

template <class Layout>
std::size_t bytes_of(Layout layout, const Sizes& s, DType elements) {
  Carve carve;
  layout(carve, s, elements);
  return carve.used();
}

__device__ float sigmoid_of(float z) { return 1.0f / (1.0f + expf(-z)); }

template <int N, class T>
__global__ void activate_kernel(std::int64_t packs, const T* gate, const T* up, T* middle) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= packs) return;
  const Pack<T, N> g = load<N>(gate + i * N), u = load<N>(up + i * N);
  Pack<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float z = to_float(g.at[j]);
    out.at[j] = from_float<T>(z * sigmoid_of(z) * to_float(u.at[j]));
  }
  store(middle + i * N, out);
}

// d silu(z) / dz = s (1 + z (1 - s)) with s = 1 / (1 + e^-z). Also makes `middle` again, for down's gradient.
// dgate holds the gradient of `middle` when called.
template <int N, class T>
__global__ void activate_backward_kernel(std::int64_t packs, const T* gate, const T* up, T* middle, T* dgate, T* dup) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= packs) return;
  const Pack<T, N> g = load<N>(gate + i * N), u = load<N>(up + i * N), gradient = load<N>(dgate + i * N);
  Pack<T, N> m, dg, du;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float z = to_float(g.at[j]), by = to_float(u.at[j]), d = to_float(gradient.at[j]);
    const float sigmoid = sigmoid_of(z), silu = z * sigmoid;
    m.at[j] = from_float<T>(silu * by);
    du.at[j] = from_float<T>(d * silu);
    dg.at[j] = from_float<T>(d * by * (sigmoid * (1.0f + z * (1.0f - sigmoid))));
  }
  store(middle + i * N, m);
  store(dup + i * N, du);
  store(dgate + i * N, dg);
}

void check_offsets(const Sizes& n, std::span<const std::int32_t> offsets) {
  ANANKE_CHECK(offsets[0] == 0, "grouped_mlp: offsets begin at {}", offsets[0]);
  for (std::size_t g = 0; g < static_cast<std::size_t>(n.groups); ++g) {
    ANANKE_CHECK(offsets[g] <= offsets[g + 1] && offsets[g + 1] <= n.rows,
                 "grouped_mlp: group {} has rows [{}, {}) of {}", g, offsets[g], offsets[g + 1], n.rows);
  }
}

// One call's products, group by group.
struct Groups {
  Products& products;
  cudaStream_t stream;
  Sizes n;
  DType elements;
  std::span<const std::int32_t> offsets;

  const std::byte* row(const void* data, std::int64_t width, std::int64_t group) const {
    return static_cast<const std::byte*>(data) + offsets[group] * width * size();
  }
  std::int64_t size() const { return static_cast<std::int64_t>(size_of(elements)); }
  std::int64_t rows(std::int64_t group) const { return offsets[group + 1] - offsets[group]; }
  std::int64_t used() const { return offsets[n.groups]; }
  static std::byte* matrix(const MatrixStack& stack, std::int64_t group) {
    return static_cast<std::byte*>(stack.first.data) +
           (group == 0 ? 0 : group * stack.stride * static_cast<std::int64_t>(size_of(stack.first.dtype)));
  }

  // out[rows, to] = x[rows, from] w, with w [from, to], or [to, from] and transposed; added where `beta` is 1.
  void apply(const void* x, std::int64_t from, const MatrixStack& w, bool transposed, void* out, std::int64_t to,
             float beta = 0) const {
    for (std::int64_t g = 0; g < n.groups; ++g) {
      products.run(stream, {.m = rows(g),
                            .n = to,
                            .k = from,
                            .a = {row(x, from, g), from},
                            .b = {matrix(w, g), transposed ? from : to, transposed},
                            .in = elements,
                            .out = const_cast<std::byte*>(row(out, to, g)),
                            .out_stride = to,
                            .out_type = elements,
                            .beta = beta,
                            .ragged = Ragged::m});
    }
  }
  // w[down, across] += a[rows, down]^T b[rows, across]
  void add_gradient(const void* a, std::int64_t down, const void* b, std::int64_t across, const MatrixStack& w) const {
    for (std::int64_t g = 0; g < n.groups; ++g) {
      if (rows(g) == 0) continue;
      products.run(stream, {.m = down,
                            .n = across,
                            .k = rows(g),
                            .a = {row(a, down, g), down, true},
                            .b = {row(b, across, g), across},
                            .in = elements,
                            .out = matrix(w, g),
                            .out_stride = across,
                            .out_type = DType::f32,
                            .beta = 1,
                            .ragged = Ragged::k});
    }
  }
};

void activate(const Groups& groups, const Saved& saved, const Scratch& scratch) {
  const std::int64_t count = groups.used() * groups.n.width;
  if (count == 0) return;
  with_elements(groups.elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(count, {saved.gate, saved.up, scratch.middle}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      activate_kernel<N><<<static_cast<unsigned>(blocks_for(count / N, threads)), threads, 0, groups.stream>>>(
          count / N, reinterpret_cast<const T*>(saved.gate), reinterpret_cast<const T*>(saved.up),
          reinterpret_cast<T*>(scratch.middle));
      ANANKE_CUDA_LAUNCHED("grouped_mlp: activation");
    });
  });
}

void activate_backward(const Groups& groups, const Saved& saved, const Scratch& scratch) {
  const std::int64_t count = groups.used() * groups.n.width;
  if (count == 0) return;
  with_elements(groups.elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(count, {saved.gate, saved.up, scratch.middle, scratch.dgate, scratch.dup}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      activate_backward_kernel<N><<<static_cast<unsigned>(blocks_for(count / N, threads)), threads, 0, groups.stream>>>(
          count / N, reinterpret_cast<const T*>(saved.gate), reinterpret_cast<const T*>(saved.up),
          reinterpret_cast<T*>(scratch.middle), reinterpret_cast<T*>(scratch.dgate), reinterpret_cast<T*>(scratch.dup));
      ANANKE_CUDA_LAUNCHED("grouped_mlp: gradient of the activation");
    });
  });
}

}  // namespace

std::size_t CudaGroupedMlp::saved(const Sizes& s) const { return bytes_of(layout_saved, s, widest_); }

std::size_t CudaGroupedMlp::workspace(const Sizes& s) const { return bytes_of(layout_scratch, s, widest_); }

void CudaGroupedMlp::forward(Stream& stream, const Forward& a) {
  constexpr const char* op = "grouped_mlp forward";
  const DType elements = elements_of(a.x);
  const Sizes n = arguments::check(a, elements);
  expect_region(op, "saved", a.saved, bytes_of(layout_saved, n, elements));
  expect_region(op, "workspace", a.workspace, bytes_of(layout_scratch, n, elements));
  if (n.groups == 0 || n.rows == 0) return;
  const Groups groups{products_, raw(stream), n, elements, offsets_.get(stream, a.offsets, a.known_offsets)};
  check_offsets(n, groups.offsets);
  Carve saved_carve(a.saved), scratch_carve(a.workspace);
  const Saved saved = layout_saved(saved_carve, n, elements);
  const Scratch scratch = layout_scratch(scratch_carve, n, elements);
  groups.apply(a.x.data, n.hidden, a.weights.gate, true, saved.gate, n.width);
  groups.apply(a.x.data, n.hidden, a.weights.up, true, saved.up, n.width);
  activate(groups, saved, scratch);
  groups.apply(scratch.middle, n.width, a.weights.down, true, a.y.data, n.hidden);
}

void CudaGroupedMlp::backward(Stream& stream, const Backward& a) {
  constexpr const char* op = "grouped_mlp backward";
  const DType elements = elements_of(a.x);
  const Sizes n = arguments::check(a, elements);
  expect_region(op, "saved", a.saved, bytes_of(layout_saved, n, elements));
  expect_region(op, "workspace", a.workspace, bytes_of(layout_scratch, n, elements));
  if (n.groups == 0 || n.rows == 0) return;
  const Groups groups{products_, raw(stream), n, elements, offsets_.get(stream, a.offsets, a.known_offsets)};
  check_offsets(n, groups.offsets);
  Carve saved_carve(a.saved), scratch_carve(a.workspace);
  const Saved saved = layout_saved(saved_carve, n, elements);
  const Scratch scratch = layout_scratch(scratch_carve, n, elements);
  groups.apply(a.dy.data, n.hidden, a.weights.down, false, scratch.dgate, n.width);
  activate_backward(groups, saved, scratch);
  groups.apply(scratch.dgate, n.width, a.weights.gate, false, a.dx.data, n.hidden);
  groups.apply(scratch.dup, n.width, a.weights.up, false, a.dx.data, n.hidden, 1);
  groups.add_gradient(scratch.dgate, n.width, a.x.data, n.hidden, a.gradient.gate);
  groups.add_gradient(scratch.dup, n.width, a.x.data, n.hidden, a.gradient.up);
  groups.add_gradient(a.dy.data, n.hidden, scratch.middle, n.width, a.gradient.down);
}

}  // namespace ananke::cuda
