#include <array>
#include <initializer_list>
#include <type_traits>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/grouped_mlp.h"
#include "plugins/backend_cuda/operators/swiglu.cuh"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

using Sizes = GroupedMlp::Sizes;
using Ragged = Product::Ragged;

constexpr int threads = swiglu_threads;

struct Saved {
  std::byte* both;  // [R, 2 F]: outputs of gate and, behind them, of up
};
struct Scratch {
  std::byte* middle;  // [R, F]: silu(gate) * up
  std::byte* dboth;   // [R, 2 F]: gradients of what is saved; those of `middle` first, in its first half
  float* sums;        // [R, sm90::swiglu_sums(F)], whose sums are the gradients of rows' weights
};

Saved layout_saved(Carve& carve, const Sizes& s, DType elements) {
  const std::int64_t bytes = s.rows * s.width * static_cast<std::int64_t>(size_of(elements));
  Saved saved{};
  saved.both = carve.take<std::byte>(2 * bytes);
  return saved;
}

Scratch layout_scratch(Carve& carve, const Sizes& s, DType elements) {
  const std::int64_t bytes = s.rows * s.width * static_cast<std::int64_t>(size_of(elements));
  Scratch scratch{};
  scratch.middle = carve.take<std::byte>(bytes);
  scratch.dboth = carve.take<std::byte>(2 * bytes);
  scratch.sums = carve.take<float>(s.rows * sm90::swiglu_sums(s.width));
  return scratch;
}

template <class Layout>
std::size_t bytes_of(Layout layout, const Sizes& s, DType elements) {
  Carve carve;
  layout(carve, s, elements);
  return carve.used();
}

// A thread per row: what its gradient was left in, summed.
__global__ void add_sums_kernel(std::int64_t rows, std::int64_t sums_of_row, const std::int32_t* used,
                                const float* sums, float* d_row_weights) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (row >= rows || row >= *used) return;
  double all = 0;
  for (std::int64_t i = 0; i < sums_of_row; ++i) all += static_cast<double>(sums[row * sums_of_row + i]);
  d_row_weights[row] = static_cast<float>(all);
}

std::span<const std::int32_t> checked(const Sizes& n, std::span<const std::int32_t> offsets) {
  ANANKE_CHECK(offsets[0] == 0, "grouped_mlp: offsets begin at {}", offsets[0]);
  for (std::size_t g = 0; g < static_cast<std::size_t>(n.groups); ++g) {
    ANANKE_CHECK(offsets[g] <= offsets[g + 1] && offsets[g + 1] <= n.rows,
                 "grouped_mlp: group {} has rows [{}, {}) of {}", g, offsets[g], offsets[g + 1], n.rows);
  }
  return offsets;
}

// A call's memory.
struct Memory {
  Saved saved;
  Scratch scratch;

  Memory(const char* op, const Sizes& n, DType elements, const Region& saved_memory, const Region& workspace) {
    expect_region(op, "saved", saved_memory, bytes_of(layout_saved, n, elements));
    expect_region(op, "workspace", workspace, bytes_of(layout_scratch, n, elements));
    Carve saved_carve(saved_memory), scratch_carve(workspace);
    saved = layout_saved(saved_carve, n, elements);
    scratch = layout_scratch(scratch_carve, n, elements);
  }
};

// Columns of a table of rows.
struct Rows {
  const void* data;
  std::int64_t columns, stride;
};
Rows whole(const void* data, std::int64_t columns) { return {data, columns, columns}; }
// Gate's (0) or up's (1) half of a table of both.
Rows half(const std::byte* both, int which, const Sizes& n, DType elements) {
  return {both + which * n.width * static_cast<std::int64_t>(size_of(elements)), n.width, 2 * n.width};
}

// Whether up's matrices lie right behind gate's: then both are one, [2 F, H].
bool joined(const MatrixStack& gate, const MatrixStack& up, const Sizes& n) {
  const auto bytes = static_cast<std::size_t>(n.width * n.hidden) * size_of(gate.first.dtype);
  return up.first.data == static_cast<std::byte*>(gate.first.data) + bytes &&
         (n.groups == 1 || gate.stride == up.stride);
}

// Zeros in matrices of `area` f32 elements.
void clear(cudaStream_t stream, std::int64_t groups, std::int64_t area, const MatrixStack& w) {
  const auto bytes = static_cast<std::size_t>(area) * sizeof(float);
  const std::size_t stride = groups == 1 ? bytes : static_cast<std::size_t>(w.stride) * sizeof(float);
  check(cudaMemset2DAsync(w.first.data, stride, 0, bytes, static_cast<std::size_t>(groups), stream),
        "clear the gradients of experts");
}

// One call's products by cuBLASLt, group by group, on several streams: one alone does not fill the device.
struct LibraryGroups {
  Products& products;
  SideStreams& sides;
  cudaStream_t stream;
  Sizes n;
  DType elements;
  std::span<const std::int32_t> offsets;

  std::byte* row(const Rows& rows, std::int64_t group) const {
    return const_cast<std::byte*>(static_cast<const std::byte*>(rows.data)) +
           offsets[group] * rows.stride * static_cast<std::int64_t>(size_of(elements));
  }
  std::int64_t rows(std::int64_t group) const { return offsets[group + 1] - offsets[group]; }
  std::int64_t most_rows() const { return offsets[n.groups]; }
  static std::byte* matrix(const MatrixStack& stack, std::int64_t group) {
    return static_cast<std::byte*>(stack.first.data) +
           (group == 0 ? 0 : group * stack.stride * static_cast<std::int64_t>(size_of(stack.first.dtype)));
  }

  // body(group, stream)
  template <class Body>
  void each(const Body& body) const {
    const std::lock_guard lock(sides.lock);
    sides.begin(stream);
    std::int64_t turn = 0;
    for (std::int64_t g = 0; g < n.groups; ++g) {
      if (rows(g) > 0) body(g, sides.at(stream, turn++));
    }
    sides.end(stream);
  }
  // out[rows, to] = x[rows, from] w, with w [from, to], or [to, from] and transposed; added where `beta` is 1.
  void apply(const Rows& x, const MatrixStack& w, bool transposed, const Rows& out, float beta = 0) const {
    each([&](std::int64_t g, cudaStream_t on) {
      products.run(on, {.m = rows(g),
                        .n = out.columns,
                        .k = x.columns,
                        .a = {row(x, g), x.stride},
                        .b = {matrix(w, g), transposed ? x.columns : out.columns, transposed},
                        .in = elements,
                        .out = row(out, g),
                        .out_stride = out.stride,
                        .out_type = elements,
                        .beta = beta,
                        .ragged = Ragged::m});
    });
  }
  // w[a's columns, b's columns] = a[rows]^T b[rows], or added
  void make_gradient(const Rows& a, const Rows& b, const MatrixStack& w, bool overwrite) const {
    if (overwrite) clear(stream, n.groups, a.columns * b.columns, w);
    each([&](std::int64_t g, cudaStream_t on) {
      products.run(on, {.m = a.columns,
                        .n = b.columns,
                        .k = rows(g),
                        .a = {row(a, g), a.stride, true},
                        .b = {row(b, g), b.stride},
                        .in = elements,
                        .out = matrix(w, g),
                        .out_stride = b.columns,
                        .out_type = DType::f32,
                        .beta = 1,
                        .ragged = Ragged::k});
    });
  }
};

// One call's products, all groups at once, by kernels that read the offsets on the device.
struct DeviceGroups {
  sm90::GroupedProducts& products;
  cudaStream_t stream;
  Sizes n;
  DType elements;
  const std::int32_t* offsets;

  std::int64_t most_rows() const { return n.rows; }
  sm90::Groups groups() const { return {offsets, n.groups, n.rows}; }
  sm90::Matrices table(const Rows& rows) const {
    return {const_cast<void*>(rows.data), DType::bf16, n.rows, rows.columns, rows.stride};
  }
  sm90::Matrices stack(const MatrixStack& w, std::int64_t rows, std::int64_t columns) const {
    return {w.first.data, w.first.dtype, rows, columns, columns, n.groups, w.stride};
  }
  void apply(const Rows& x, const MatrixStack& w, bool transposed, const Rows& out, float beta = 0) const {
    ANANKE_CHECK(beta == 0, "grouped_mlp: a product of all groups, added {} times", beta);
    const std::int64_t from = x.columns, to = out.columns;
    products.multiply(stream, groups(), table(x), transposed ? stack(w, to, from) : stack(w, from, to), !transposed,
                      table(out));
  }
  void make_gradient(const Rows& a, const Rows& b, const MatrixStack& w, bool overwrite) const {
    products.multiply_rows(stream, groups(), table(a), table(b), stack(w, a.columns, b.columns), !overwrite);
  }
  // Gate's and up's products of x, which are kept, and the activation.
  void swiglu(const Rows& x, const MatrixStack& gate_and_up, const Saved& saved, const Scratch& scratch) const {
    products.multiply_swiglu(stream, groups(), table(x), stack(gate_and_up, 2 * n.width, n.hidden),
                             table(whole(saved.both, 2 * n.width)), table(whole(scratch.middle, n.width)));
  }
  // From dy through down and the activation; makes row weights x the activation again.
  void swiglu_backward(const Rows& dy, const GroupedMlp::Backward& a, const Saved& saved,
                       const Scratch& scratch) const {
    auto* d_row_weights = data<float>(a.d_row_weights);
    products.multiply_swiglu_backward(stream, groups(), table(dy), stack(a.weights.down, n.hidden, n.width),
                                      {saved.both, data<const float>(a.row_weights), scratch.dboth, scratch.middle,
                                       d_row_weights ? scratch.sums : nullptr});
    if (!d_row_weights) return;
    add_sums_kernel<<<static_cast<unsigned>(blocks_for(n.rows, threads)), threads, 0, stream>>>(
        n.rows, sm90::swiglu_sums(n.width), offsets + n.groups, scratch.sums, d_row_weights);
    ANANKE_CUDA_LAUNCHED("grouped_mlp: gradient of rows' weights");
  }
  // Whether the kernels take the matrices, and tables of `hidden` columns at these addresses (null: there is none). In
  // `saved` and `workspace` lies nothing that they would not take beside those.
  bool take(const GroupedMlp::Weights& w, std::initializer_list<const void*> tables) const {
    if (elements != DType::bf16) return false;
    for (const void* data : tables) {
      if (data && !products.take(n.groups, std::array{table(whole(data, n.hidden))})) return false;
    }
    return n.width % 8 == 0 &&
           products.take(n.groups, std::array{stack(w.gate, n.width, n.hidden), stack(w.up, n.width, n.hidden),
                                              stack(w.down, n.hidden, n.width)});
  }
};

// Of as many rows as the host knows that groups have at most.
template <class Groups>
void activate(const Groups& groups, const std::int32_t* used, const Saved& saved, const Scratch& scratch) {
  const std::int64_t count = groups.most_rows() * groups.n.width;
  if (count == 0) return;
  with_elements(groups.elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(groups.n.width, {saved.both, scratch.middle}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      swiglu_kernel<N><<<static_cast<unsigned>(blocks_for(count / N, threads)), threads, 0, groups.stream>>>(
          count / N, groups.n.width / N, used, reinterpret_cast<const T*>(saved.both),
          reinterpret_cast<T*>(scratch.middle));
      ANANKE_CUDA_LAUNCHED("grouped_mlp: activation");
    });
  });
}

void activate_backward(const LibraryGroups& groups, const GroupedMlp::Backward& a, const Saved& saved,
                       const Scratch& scratch) {
  const std::int64_t rows = groups.most_rows();
  if (rows == 0) return;
  with_elements(groups.elements, [&](auto element) {
    using T = decltype(element);
    with_packs<T>(groups.n.width, {saved.both, scratch.middle, scratch.dboth}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      swiglu_backward_kernel<N><<<static_cast<unsigned>(blocks_for(rows, threads / 32)), threads, 0, groups.stream>>>(
          rows, groups.n.width / N, data<const std::int32_t>(a.offsets) + groups.n.groups,
          data<const float>(a.row_weights), reinterpret_cast<const T*>(saved.both),
          reinterpret_cast<T*>(scratch.middle), reinterpret_cast<T*>(scratch.dboth), data<float>(a.d_row_weights));
      ANANKE_CUDA_LAUNCHED("grouped_mlp: gradient of the activation");
    });
  });
}

// Gate's and up's products of x and, where there is to be an output, the activation.
template <class Groups>
void run_activation(const Groups& groups, const GroupedMlp::Forward& a, const Saved& saved, const Scratch& scratch) {
  const Sizes& n = groups.n;
  const Rows x = whole(a.x.data, n.hidden);
  if (joined(a.weights.gate, a.weights.up, n)) {
    if constexpr (std::is_same_v<Groups, DeviceGroups>) {
      if (a.y) return groups.swiglu(x, a.weights.gate, saved, scratch);
    }
    groups.apply(x, a.weights.gate, true, whole(saved.both, 2 * n.width));
  } else {
    groups.apply(x, a.weights.gate, true, half(saved.both, 0, n, groups.elements));
    groups.apply(x, a.weights.up, true, half(saved.both, 1, n, groups.elements));
  }
  if (a.y) activate(groups, data<const std::int32_t>(a.offsets) + n.groups, saved, scratch);
}

template <class Groups>
void run_forward(const Groups& groups, const GroupedMlp::Forward& a, const Saved& saved, const Scratch& scratch) {
  const Sizes& n = groups.n;
  run_activation(groups, a, saved, scratch);
  if (!a.y) return;
  groups.apply(whole(scratch.middle, n.width), a.weights.down, true, whole(a.y.data, n.hidden));
}

template <class Groups>
void run_backward(const Groups& groups, const GroupedMlp::Backward& a, const Saved& saved, const Scratch& scratch) {
  const Sizes& n = groups.n;
  const Rows x = whole(a.x.data, n.hidden), dx = whole(a.dx.data, n.hidden), dy = whole(a.dy.data, n.hidden),
             dboth = whole(scratch.dboth, 2 * n.width);
  const auto half_of_dboth = [&](int which) { return half(scratch.dboth, which, n, groups.elements); };
  if constexpr (std::is_same_v<Groups, DeviceGroups>) {
    groups.swiglu_backward(dy, a, saved, scratch);
  } else {
    groups.apply(dy, a.weights.down, false, half_of_dboth(0));
    activate_backward(groups, a, saved, scratch);
  }
  if (joined(a.weights.gate, a.weights.up, n)) {
    groups.apply(dboth, a.weights.gate, false, dx);
  } else {
    groups.apply(half_of_dboth(0), a.weights.gate, false, dx);
    groups.apply(half_of_dboth(1), a.weights.up, false, dx, 1);
  }
  if (joined(a.gradient.gate, a.gradient.up, n)) {
    groups.make_gradient(dboth, x, a.gradient.gate, a.overwrite);
  } else {
    groups.make_gradient(half_of_dboth(0), x, a.gradient.gate, a.overwrite);
    groups.make_gradient(half_of_dboth(1), x, a.gradient.up, a.overwrite);
  }
  groups.make_gradient(dy, whole(scratch.middle, n.width), a.gradient.down, a.overwrite);
}

}  // namespace

std::size_t CudaGroupedMlp::saved(const Sizes& s) const { return bytes_of(layout_saved, s, widest_); }

std::size_t CudaGroupedMlp::workspace(const Sizes& s) const { return bytes_of(layout_scratch, s, widest_); }

void CudaGroupedMlp::forward(Stream& stream, const Forward& a) {
  const DType elements = elements_of(a.x);
  const Sizes n = arguments::check(a, elements);
  const auto [saved, scratch] = Memory("grouped_mlp forward", n, elements, a.saved, a.workspace);
  if (n.groups == 0 || n.rows == 0) return;
  const DeviceGroups groups{grouped_products_, raw(stream), n, elements, data<const std::int32_t>(a.offsets)};
  if (kernels_ == GroupedKernels::sm90 && groups.take(a.weights, {a.x.data, a.y.data})) {
    return run_forward(groups, a, saved, scratch);
  }
  run_forward(LibraryGroups{products_, sides_, raw(stream), n, elements,
                            checked(n, offsets_.get(stream, a.offsets, a.known_offsets))},
              a, saved, scratch);
}

void CudaGroupedMlp::backward(Stream& stream, const Backward& a) {
  const DType elements = elements_of(a.x);
  const Sizes n = arguments::check(a, elements);
  const auto [saved, scratch] = Memory("grouped_mlp backward", n, elements, a.saved, a.workspace);
  if (n.groups == 0) return;
  if (n.rows == 0) {
    for (const MatrixStack* stack : {&a.gradient.gate, &a.gradient.up, &a.gradient.down}) {
      if (a.overwrite) clear(raw(stream), n.groups, n.width * n.hidden, *stack);
    }
    return;
  }
  const DeviceGroups groups{grouped_products_, raw(stream), n, elements, data<const std::int32_t>(a.offsets)};
  if (kernels_ == GroupedKernels::sm90 && joined(a.weights.gate, a.weights.up, n) &&
      groups.take(a.weights, {a.x.data, a.dy.data, a.dx.data}) && groups.take(a.gradient, {})) {
    return run_backward(groups, a, saved, scratch);
  }
  run_backward(LibraryGroups{products_, sides_, raw(stream), n, elements,
                             checked(n, offsets_.get(stream, a.offsets, a.known_offsets))},
               a, saved, scratch);
}

}  // namespace ananke::cuda
