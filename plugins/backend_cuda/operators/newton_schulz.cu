#include <algorithm>
#include <utility>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/newton_schulz.h"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

using Sizes = NewtonSchulz::Sizes;

constexpr int threads = 256;
constexpr int norm_blocks = 64;  // partial sums of one matrix
// Of the matrices computed at a time: enough products to fill a device.
constexpr std::int64_t bytes_together = 1 << 28;
constexpr int side = 64;             // of a tile that a block transposes
constexpr int packs_per_thread = 4;  // of a block that does not

struct Layout {
  Layout(const Sizes& n, NewtonSchulz::Precision precision)
      : dtype(precision == NewtonSchulz::Precision::bf16 ? DType::bf16 : DType::f32),
        s(std::min(n.rows, n.columns)),
        l(std::max(n.rows, n.columns)),
        transposed(n.rows > n.columns),
        most(std::clamp<std::int64_t>(bytes_together / (std::max<std::int64_t>(1, s * l) * size()), 1, 256)),
        together(std::min(n.count, most)) {}
  std::int64_t size() const { return static_cast<std::int64_t>(size_of(dtype)); }
  DType dtype;
  std::int64_t s, l;  // short and long side
  bool transposed;
  std::int64_t most;      // matrices at a time, however many there are: what the algorithms are chosen for
  std::int64_t together;  // that memory is there for
};

struct Scratch {
  void *x, *y;      // [together, s, l], of the precision's type
  void *a, *b;      // [together, s, s]
  double* norms;    // [together, norm_blocks]
  float* divisors;  // [together]
  int* progress;    // of the kernel that makes all steps
};

Scratch layout_scratch(Carve& carve, const Layout& n) {
  const std::int64_t area = n.together * n.s * n.l * n.size(), square = n.together * n.s * n.s * n.size();
  Scratch scratch{};
  scratch.x = carve.take<std::byte>(area);
  scratch.y = carve.take<std::byte>(area);
  scratch.a = carve.take<std::byte>(square);
  scratch.b = carve.take<std::byte>(square);
  scratch.norms = carve.take<double>(n.together * norm_blocks);
  scratch.divisors = carve.take<float>(n.together);
  scratch.progress = carve.take<int>(sm90::NewtonSchulzSteps::progress_ints(n.together));
  return scratch;
}

// What is left of a value in the precision's type.
template <class T>
__device__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

// Sums of squares of parts of matrix blockIdx.y.
template <int N, class T>
__global__ void norm_kernel(std::int64_t area, const float* matrices, double* norms) {
  __shared__ double scratch[32];
  const float* matrix = matrices + blockIdx.y * area;
  double sum = 0;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < area / N;
       i += norm_blocks * threads) {
    const Pack<float, N> values = ananke::cuda::load<N>(matrix + i * N);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const double value = rounded<T>(values.at[j]);
      sum += value * value;
    }
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) norms[blockIdx.y * norm_blocks + blockIdx.x] = sum;
}

// What matrix blockIdx.x is divided by. One warp.
template <class T>
__global__ void divisor_kernel(double eps, const double* norms, float* divisors) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < norm_blocks; i += 32) sum += norms[blockIdx.x * norm_blocks + i];
  const float norm = rounded<T>(static_cast<float>(sqrt(warp_sum(sum)))), least = static_cast<float>(eps);
  if (threadIdx.x == 0) divisors[blockIdx.x] = norm > least ? norm : least;
}

// to[i] = from[i], changed; rows and columns do not matter.
template <int N, class From, class To, class Change>
__device__ void move_flat(std::int64_t area, const From* from, To* to, const Change& change) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * packs_per_thread * threads + threadIdx.x;
  Pack<From, N> values[packs_per_thread];
#pragma unroll
  for (int k = 0; k < packs_per_thread; ++k) {
    const std::int64_t i = first + k * threads;
    if (i < area / N) values[k] = ananke::cuda::load<N>(from + i * N);
  }
#pragma unroll
  for (int k = 0; k < packs_per_thread; ++k) {
    const std::int64_t i = first + k * threads;
    Pack<To, N> moved;
#pragma unroll
    for (int j = 0; j < N; ++j) moved.at[j] = from_float<To>(change(to_float(values[k].at[j])));
    if (i < area / N) ananke::cuda::store(to + i * N, moved);
  }
}

// to[c, r] = from[r, c], changed, of a [rows, columns] matrix; blockIdx.x over all tiles.
template <int N, class From, class To, class Change>
__device__ void move_transposed(std::int64_t rows, std::int64_t columns, const From* from, To* to,
                                const Change& change) {
  __shared__ float tile[side][side + 1];
  constexpr int packs = side / N, turns = side * packs / threads;
  const std::int64_t across = (columns + side - 1) / side;
  const std::int64_t row = blockIdx.x / across * side, column = blockIdx.x % across * side;
  Pack<From, N> values[turns];
#pragma unroll
  for (int k = 0; k < turns; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * threads;
    const std::int64_t r = row + i / packs, c = column + i % packs * N;
    if (r < rows && c < columns) values[k] = ananke::cuda::load<N>(from + r * columns + c);
  }
#pragma unroll
  for (int k = 0; k < turns; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * threads;
#pragma unroll
    for (int j = 0; j < N; ++j) tile[i / packs][i % packs * N + j] = change(to_float(values[k].at[j]));
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < turns; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * threads;
    const std::int64_t r = row + i % packs * N, c = column + i / packs;
    if (r >= rows || c >= columns) continue;
    Pack<To, N> moved;
#pragma unroll
    for (int j = 0; j < N; ++j) moved.at[j] = from_float<To>(tile[i % packs * N + j][i / packs]);
    ananke::cuda::store(to + c * rows + r, moved);
  }
}

template <int N, class T>
__global__ void load_kernel(std::int64_t rows, std::int64_t columns, bool transposed, const float* divisors,
                            const float* matrices, T* x) {
  const std::int64_t at = blockIdx.y * rows * columns;
  const float divisor = divisors[blockIdx.y];
  const auto change = [&](float value) { return __fdiv_rn(rounded<T>(value), divisor); };
  if (transposed) {
    move_transposed<N>(rows, columns, matrices + at, x + at, change);
  } else {
    move_flat<N>(rows * columns, matrices + at, x + at, change);
  }
}

// x [rows, columns] lies transposed where the matrix was.
template <int N, class T>
__global__ void store_kernel(std::int64_t rows, std::int64_t columns, bool transposed, const int* finite, const T* x,
                             float* matrices) {
  if (*finite == 0) return;
  const std::int64_t at = blockIdx.y * rows * columns;
  const auto change = [](float value) { return value; };
  if (transposed) {
    move_transposed<N>(rows, columns, x + at, matrices + at, change);
  } else {
    move_flat<N>(rows * columns, x + at, matrices + at, change);
  }
}

unsigned blocks_to_move(std::int64_t rows, std::int64_t columns, bool transposed, int pack) {
  const std::int64_t blocks = transposed ? blocks_for(rows, side) * blocks_for(columns, side)
                                         : blocks_for(rows * columns, pack * packs_per_thread * threads);
  return static_cast<unsigned>(blocks);
}

// One group of matrices on its way through the iteration.
class Iteration {
 public:
  // `steps`: the kernel for all steps, or null.
  Iteration(Products& products, const sm90::NewtonSchulzSteps* steps, cudaStream_t stream,
            const NewtonSchulz::Arguments& a, const Layout& n, const Scratch& scratch)
      : products_(products), steps_(steps), stream_(stream), arguments_(a), n_(n), scratch_(scratch), dtype_(n.dtype) {}

  // In place on `count` matrices from `matrices` on.
  void run(float* matrices, std::int64_t count) {
    with_elements(dtype_, [&](auto element) {
      with_whole_packs(matrices, [&](auto pack) { load<pack>(matrices, count, element); });
    });
    if (steps_) {
      steps_->run(stream_, {count, n_.s, n_.l, scratch_.x, scratch_.y, scratch_.a, scratch_.b, scratch_.progress},
                  arguments_.steps, arguments_.a, arguments_.b, arguments_.c);
      if (arguments_.steps % 2 != 0) std::swap(scratch_.x, scratch_.y);
    } else {
      for (int step = 0; step < arguments_.steps; ++step) multiply_step(count);
    }
    with_elements(dtype_, [&](auto element) {
      with_whole_packs(matrices, [&](auto pack) { store<pack>(matrices, count, element); });
    });
  }

 private:
  // body(std::integral_constant<int, N>) with 8 elements at once where rows and columns allow it, else 1.
  template <class Body>
  void with_whole_packs(const float* matrices, const Body& body) const {
    if (n_.s % 8 == 0 && packs_fit<float, 8>(n_.l, {matrices, scratch_.x, scratch_.y})) {
      body(std::integral_constant<int, 8>{});
    } else {
      body(std::integral_constant<int, 1>{});
    }
  }
  template <int N, class T>
  void load(const float* matrices, std::int64_t count, T) {
    const std::int64_t rows = n_.transposed ? n_.l : n_.s, columns = n_.transposed ? n_.s : n_.l;
    const auto number = static_cast<unsigned>(count);
    norm_kernel<N == 1 ? 1 : 4, T>
        <<<dim3(norm_blocks, number), threads, 0, stream_>>>(n_.s * n_.l, matrices, scratch_.norms);
    ANANKE_CUDA_LAUNCHED("newton_schulz: norms");
    divisor_kernel<T><<<number, 32, 0, stream_>>>(arguments_.eps, scratch_.norms, scratch_.divisors);
    ANANKE_CUDA_LAUNCHED("newton_schulz: divisors");
    load_kernel<N, T><<<dim3(blocks_to_move(rows, columns, n_.transposed, N), number), threads, 0, stream_>>>(
        rows, columns, n_.transposed, scratch_.divisors, matrices, static_cast<T*>(scratch_.x));
    ANANKE_CUDA_LAUNCHED("newton_schulz: load");
  }
  template <int N, class T>
  void store(float* matrices, std::int64_t count, T) {
    const dim3 grid(blocks_to_move(n_.s, n_.l, n_.transposed, N), static_cast<unsigned>(count));
    store_kernel<N, T><<<grid, threads, 0, stream_>>>(n_.s, n_.l, n_.transposed, data<const int>(arguments_.finite),
                                                      static_cast<const T*>(scratch_.x), matrices);
    ANANKE_CUDA_LAUNCHED("newton_schulz: store");
  }
  void multiply_step(std::int64_t count) {
    const Factor x{scratch_.x, n_.l, false, n_.s * n_.l}, a{scratch_.a, n_.s, false, n_.s * n_.s};
    const Factor b{scratch_.b, n_.s, false, n_.s * n_.s}, xt{scratch_.x, n_.l, true, n_.s * n_.l};
    multiply(count, n_.s, n_.l, x, xt, 1, 0, nullptr, scratch_.a);
    multiply(count, n_.s, n_.s, a, a, arguments_.c, arguments_.b, scratch_.a, scratch_.b);
    multiply(count, n_.l, n_.s, b, x, 1, arguments_.a, scratch_.x, scratch_.y);
    std::swap(scratch_.x, scratch_.y);
  }
  // out[s, columns] = alpha a b + beta add, per matrix.
  void multiply(std::int64_t count, std::int64_t columns, std::int64_t terms, const Factor& a, const Factor& b,
                double alpha, double beta, const void* add, void* out) {
    products_.run(stream_, {.m = n_.s,
                            .n = columns,
                            .k = terms,
                            .a = a,
                            .b = b,
                            .in = dtype_,
                            .out = out,
                            .out_stride = columns,
                            .out_type = dtype_,
                            .alpha = static_cast<float>(alpha),
                            .beta = static_cast<float>(beta),
                            .add = add,
                            .count = count,
                            .tuned_count = n_.most,
                            .out_batch_stride = n_.s * columns});
  }

  Products& products_;
  const sm90::NewtonSchulzSteps* steps_;
  cudaStream_t stream_;
  const NewtonSchulz::Arguments& arguments_;
  const Layout& n_;
  Scratch scratch_;
  DType dtype_;
};

}  // namespace

std::size_t CudaNewtonSchulz::workspace(const Sizes& s) const {
  Carve f32, bf16;
  layout_scratch(f32, Layout(s, Precision::f32));
  layout_scratch(bf16, Layout(s, Precision::bf16));
  return std::max(f32.used(), bf16.used());
}

void CudaNewtonSchulz::run(Stream& stream, const Arguments& a) {
  const Sizes n = arguments::check(a);
  expect_region("newton_schulz", "workspace", a.workspace, workspace(n));
  if (a.matrices.elements() == 0) return;
  const Layout layout(n, a.precision);
  Carve carve(a.workspace);
  const Scratch scratch = layout_scratch(carve, layout);
  const cudaStream_t on = raw(stream);
  const bool own = kernels_ == GroupedKernels::sm90 && a.precision == Precision::bf16 &&
                   steps_.faster(layout.s, layout.l) && reinterpret_cast<std::uintptr_t>(scratch.x) % 64 == 0;
  for (std::int64_t first = 0; first < n.count; first += layout.together) {
    Iteration iteration(products_, own ? &steps_ : nullptr, on, a, layout, scratch);
    iteration.run(data<float>(a.matrices) + first * n.rows * n.columns, std::min(layout.together, n.count - first));
  }
}

}  // namespace ananke::cuda
