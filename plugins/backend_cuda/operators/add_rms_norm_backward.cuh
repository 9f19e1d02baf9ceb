// The norm's backward pass:
//   dh = dh_in + r weight dy - r^3 h mean(weight dy h);  dweight += dy h r
// Blocks share out the rows one after the other, so that rows that are worked on at a time lie together in memory. Each
// has a ring of rows in shared memory: the next ones are on their way while those at hand are summed. A thread copies,
// reads and writes columns of its own alone, so the one barrier is that of the sum over a row.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/floats.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "plugins/backend_cuda/operators/shared_memory.cuh"

namespace ananke::cuda {

inline constexpr int ring_stages = 2, ring_held = 2, ring_most_threads = 512;

template <class T>
struct RowsBackward {
  std::int64_t rows, packs;
  const T* h;
  const float* weight;
  const T *dy, *dh_in;  // dh_in may be null
  T* dh;
  const float* inverse_rms;
  float* partial;  // [blocks, width]: the blocks' parts of dweight
};

struct RingShape {
  std::int64_t blocks = 0;
  int at_once = 0, threads = 0;  // rows between two barriers: 1 or 2
  std::size_t shared = 0;        // bytes, at most 96 KiB; 0: rows are too wide
};

// By sizes alone, so that sums are the same on every device. On an SM of an H200 four blocks have room, or two.
inline RingShape ring_shape(std::int64_t rows, std::int64_t packs) {
  constexpr std::int64_t quarter = 56 << 10;
  const std::int64_t threads = (blocks_for(packs, ring_held) + 31) / 32 * 32;
  if (threads > ring_most_threads) return {};
  const std::int64_t slot = threads * ring_held * 16, one = 3 * ring_stages * slot;
  RingShape shape;
  shape.at_once = 2 * one <= quarter && threads <= ring_most_threads / 4 ? 2 : 1;
  shape.threads = static_cast<int>(threads);
  shape.shared = static_cast<std::size_t>(one * shape.at_once);
  shape.blocks = std::min<std::int64_t>(blocks_for(rows, shape.at_once), one * shape.at_once <= quarter ? 512 : 256);
  return shape;
}

// 16 bytes to shared memory, on their way until this thread waits for the group that they are in.
__device__ __forceinline__ void copy_ahead(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `Under` groups of this thread are on their way.
template <int Under>
__device__ __forceinline__ void await_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Under) : "memory");
}

// The sums over the block of each of `values`, in every thread. `partial`: shared, that the next call but one may use.
template <int Count>
__device__ __forceinline__ void block_sums(float (&values)[Count], float (&partial)[Count][32]) {
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < Count; ++m) {
    values[m] = warp_sum(values[m]);
    if (lane == 0) partial[m][warp] = values[m];
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < Count; ++m) values[m] = warp_sum(lane < warps ? partial[m][lane] : 0.0f);
}

// A thread's columns of the ring: `ring_held` packs of each of h, dy and dh_in of a row, blockDim.x apart.
template <int N, int AtOnce, class T>
struct Ring {
  using Columns = Pack<T, N>;
  const RowsBackward<T>& n;
  Columns* columns;  // of this thread

  __device__ int slot() const { return ring_held * static_cast<int>(blockDim.x); }
  __device__ int pack(int u) const { return static_cast<int>(threadIdx.x + u * blockDim.x); }
  __device__ Columns* at(int stage, int m) const { return columns + (stage * AtOnce + m) * 3 * slot(); }
  __device__ std::int64_t place(std::int64_t t, int u) const { return (t * n.packs + pack(u)) * N; }
  // Rows `group` * AtOnce and so on; a group is closed whether there are any or not.
  __device__ void fetch(std::int64_t group, int stage) const {
#pragma unroll
    for (int m = 0; m < AtOnce; ++m) {
      const std::int64_t t = group * AtOnce + m;
      if (t >= n.rows) continue;
      Columns* to = at(stage, m);
#pragma unroll
      for (int u = 0; u < ring_held; ++u) {
        if (pack(u) >= n.packs) continue;
        const std::int64_t from = place(t, u);
        copy_ahead(to + u * blockDim.x, n.h + from);
        copy_ahead(to + slot() + u * blockDim.x, n.dy + from);
        if (n.dh_in) copy_ahead(to + 2 * slot() + u * blockDim.x, n.dh_in + from);
      }
    }
    close_group();
  }
};

template <int N, int AtOnce, int Threads, class T>
__global__ void __launch_bounds__(Threads, AtOnce == 2 ? 4 : 2) ring_backward_kernel(RowsBackward<T> n) {
  extern __shared__ __align__(16) unsigned char ring_memory[];
  __shared__ float sums[2][AtOnce][32];
  using Columns = Pack<T, N>;
  const Ring<N, AtOnce, T> ring{n, reinterpret_cast<Columns*>(ring_memory) + threadIdx.x};
  const int slot = ring.slot();
  const std::int64_t groups = (n.rows + AtOnce - 1) / AtOnce;
  const float by_width = 1.0f / static_cast<float>(n.packs * N);
  Pack<float, N> dweight[ring_held] = {}, by[ring_held];
#pragma unroll
  for (int u = 0; u < ring_held; ++u) {
    if (ring.pack(u) < n.packs) by[u] = load_floats<N>(n.weight + ring.pack(u) * N);
  }
  ring.fetch(blockIdx.x, 0);
  int stage = 0;
  for (std::int64_t group = blockIdx.x; group < groups; group += gridDim.x, stage ^= 1) {
    ring.fetch(group + gridDim.x, stage ^ 1);
    await_groups<1>();
    float products[AtOnce] = {}, r[AtOnce] = {};
#pragma unroll
    for (int m = 0; m < AtOnce; ++m) {
      if (group * AtOnce + m >= n.rows) continue;
      r[m] = n.inverse_rms[group * AtOnce + m];
      const Columns* row = ring.at(stage, m);
#pragma unroll
      for (int u = 0; u < ring_held; ++u) {
        if (ring.pack(u) >= n.packs) continue;
        const Columns value = row[u * blockDim.x], gradient = row[slot + u * blockDim.x];
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float product = to_float(gradient.at[j]) * to_float(value.at[j]);
          products[m] += by[u].at[j] * product;
          dweight[u].at[j] += product * r[m];
        }
      }
    }
    block_sums(products, sums[stage]);
#pragma unroll
    for (int m = 0; m < AtOnce; ++m) {
      const std::int64_t t = group * AtOnce + m;
      if (t >= n.rows) continue;
      const float pull = r[m] * r[m] * r[m] * (products[m] * by_width);
      const Columns* row = ring.at(stage, m);
#pragma unroll
      for (int u = 0; u < ring_held; ++u) {
        if (ring.pack(u) >= n.packs) continue;
        const Columns value = row[u * blockDim.x], gradient = row[slot + u * blockDim.x];
        Columns before{}, out;
        if (n.dh_in) before = row[2 * slot + u * blockDim.x];
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float own = r[m] * by[u].at[j] * to_float(gradient.at[j]) - to_float(value.at[j]) * pull;
          out.at[j] = from_float<T>(n.dh_in ? to_float(before.at[j]) + own : own);
        }
        store_passing(n.dh + ring.place(t, u), out);
      }
    }
  }
#pragma unroll
  for (int u = 0; u < ring_held; ++u) {
    if (ring.pack(u) >= n.packs) continue;
    store_floats<N>(n.partial + (blockIdx.x * n.packs + ring.pack(u)) * N, dweight[u]);
  }
}

template <int N, class T>
void launch_ring(cudaStream_t on, const RingShape& shape, const RowsBackward<T>& rows) {
  const auto kernel = shape.at_once == 2 ? ring_backward_kernel<N, 2, ring_most_threads / 4, T>
                                         : ring_backward_kernel<N, 1, ring_most_threads, T>;
  allow_shared(kernel, shape.shared + (1 << 10));  // with what the kernel has besides
  kernel<<<static_cast<unsigned>(shape.blocks), shape.threads, shape.shared, on>>>(rows);
  ANANKE_CUDA_LAUNCHED("add_rms_norm backward");
}

}  // namespace ananke::cuda
