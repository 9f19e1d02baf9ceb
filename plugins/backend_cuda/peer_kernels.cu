#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/peer_kernels.h"

namespace ananke::cuda {
namespace {

constexpr int threads = 512;
constexpr int in_flight = 8;  // accesses of 16 bytes that a thread has under way

// Of what other GPUs write: everything that they wrote before is seen after it.
__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* from) {
  unsigned long long value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(unsigned long long* to, unsigned long long value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// Until `flag` has come to `call`; false: it was stopped.
__device__ bool wait_for(const unsigned long long* flag, unsigned long long call, const int* stopped) {
  for (unsigned spins = 1; load_acquire(flag) < call; ++spins) {
    if (spins % 256 == 0 && *static_cast<const volatile int*>(stopped) != 0) return false;
    if (spins > 256) __nanosleep(100);
  }
  return true;
}

// A thread for each of the others; all threads of a block call it. True: all have told.
__device__ bool wait_for_notes(const PeerCall& c) {
  const int p = static_cast<int>(threadIdx.x);
  bool here = true;
  if (p < c.size && p != c.rank) here = wait_for(&c.boards[c.rank]->notes[p].call, c.call, c.stopped);
  return __syncthreads_and(here);
}

// To rank p, by one thread.
__device__ void tell(const PeerCall& c, int p, const PeerNote& note) {
  volatile PeerNote* to = &c.boards[p]->notes[c.rank];
  to->bytes = note.bytes;
  to->place = note.place;
  to->capacity = note.capacity;
  to->piece = note.piece;
  for (int i = 0; i < c.size; ++i) to->counts[i] = note.counts[i];
  __threadfence_system();
  store_release(const_cast<unsigned long long*>(&to->call), c.call);
}

// This block has moved what it moves; and waits until the blocks of the same number have on the others.
__device__ void finish(const PeerCall& c) {
  __syncthreads();
  const int p = static_cast<int>(threadIdx.x);
  if (p >= c.size || p == c.rank) return;
  __threadfence_system();
  store_release(&c.boards[p]->done[c.rank][blockIdx.x], c.call);
  wait_for(&c.boards[c.rank]->done[p][blockIdx.x], c.call, c.stopped);
}

// Units of 16 bytes.
__device__ void copy(uint4* to, const uint4* from, long long count) {
  long long i = threadIdx.x;
  for (; i + (in_flight - 1) * threads < count; i += in_flight * threads) {
    uint4 values[in_flight];
#pragma unroll
    for (int j = 0; j < in_flight; ++j) values[j] = __ldcs(from + i + j * threads);
#pragma unroll
    for (int j = 0; j < in_flight; ++j) to[i + j * threads] = values[j];
  }
  for (; i < count; i += threads) to[i] = __ldcs(from + i);
}

struct RowPlan {
  long long from, to, rows;  // of this rank's rows for a rank: first in `send`, first in its `receive`, how many
  std::byte* receive;
};

// By one thread for each rank p, from all counts.
__device__ RowPlan plan_of(const PeerCall& c, const PeerRows& r, const int (&counts)[most_peers][most_peers], int p) {
  const volatile PeerNote& note = c.boards[c.rank]->notes[p];
  RowPlan plan{0, 0, counts[c.rank][p], p == c.rank ? r.receive : nullptr};
  for (int q = 0; q < p; ++q) plan.from += counts[c.rank][q];
  for (int q = 0; q < c.rank; ++q) plan.to += counts[q][p];
  long long capacity = r.receive_rows, bytes = r.row;
  if (p != c.rank) {
    capacity = note.capacity;
    bytes = note.bytes;
    plan.receive = c.pieces[note.piece][p] + note.place;
  }
  if (bytes != r.row) {
    report(c.faults, Fault::peer_call, c.rank, r.row, p, bytes);
  } else if (plan.rows < 0 || plan.from + plan.rows > r.send_rows) {
    report(c.faults, Fault::rows_leave, plan.from + plan.rows, r.send_rows, p);
  } else if (plan.to < 0 || plan.to + plan.rows > capacity) {
    report(c.faults, Fault::rows_arrive, plan.to + plan.rows, capacity, p);
  } else {
    return plan;
  }
  plan.rows = 0;
  return plan;
}

// This block's share of a rank's rows.
__device__ void push(const PeerRows& r, const RowPlan& plan) {
  const long long units = r.row / 16, all = plan.rows * units;
  const long long begin = all * blockIdx.x / gridDim.x, end = all * (blockIdx.x + 1) / gridDim.x;
  copy(reinterpret_cast<uint4*>(plan.receive) + plan.to * units + begin,
       reinterpret_cast<const uint4*>(r.send) + plan.from * units + begin, end - begin);
}

__global__ void __launch_bounds__(threads)
    exchange_rows_kernel(const __grid_constant__ PeerCall c, const __grid_constant__ PeerRows r) {
  __shared__ int counts[most_peers][most_peers];  // from, to
  __shared__ RowPlan plans[most_peers];
  const int p = static_cast<int>(threadIdx.x);
  long long arrived = 0;  // from others
  if (p < c.size) counts[c.rank][p] = r.send_counts[p * r.send_columns];
  __syncthreads();
  if (blockIdx.x == 0 && p < c.size && p != c.rank) {
    PeerNote note{c.call, r.row, r.place, r.receive_rows, r.piece, {}};
    for (int q = 0; q < c.size; ++q) note.counts[q] = counts[c.rank][q];
    tell(c, p, note);
  }
  if (!wait_for_notes(c)) return;
  if (p < c.size && p != c.rank) {
    const volatile PeerNote& note = c.boards[c.rank]->notes[p];
    for (int q = 0; q < c.size; ++q) counts[p][q] = note.counts[q];
  }
  __syncthreads();
  if (p < c.size) plans[p] = plan_of(c, r, counts, p);
  if (blockIdx.x == 0 && p < c.size && r.receive_counts) r.receive_counts[p * r.receive_columns] = counts[p][c.rank];
  if (blockIdx.x == 0 && p == 0) {
    long long rows = 0;
    for (int q = 0; q < c.size; ++q) rows += counts[q][c.rank];
    if (rows > r.receive_rows) report(c.faults, Fault::rows_arrive, rows, r.receive_rows, c.rank);
    arrived = rows - counts[c.rank][c.rank];
  }
  __syncthreads();
  // Blocks begin with different ranks, so that all links are in use, and end with what stays here.
  for (int i = 0; i < c.size - 1; ++i) {
    const int step = 1 + static_cast<int>((blockIdx.x + i) % (c.size - 1));
    push(r, plans[(c.rank + step) % c.size]);
  }
  push(r, plans[c.rank]);
  if (blockIdx.x == 0 && p == 0 && r.received) *r.received += arrived * r.row;  // over the bus, so last
  finish(c);
}

// Sums of two packs of N numbers that lie `apart` packs from each other, four ranks under way at once.
template <int N>
struct TwoSums {
  float total[2][N] = {};
  __device__ void take(const Pack<bf16, N>& first, const Pack<bf16, N>& second) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      total[0][j] += to_float(first.at[j]);
      total[1][j] += to_float(second.at[j]);
    }
  }
  __device__ void put(int which, float* to, bool add) const {
    constexpr int wide = N < 4 ? N : 4;
#pragma unroll
    for (int j = 0; j < N; j += wide) {
      Pack<float, wide> out{};
      if (add) out = load<wide>(to + j);
#pragma unroll
      for (int k = 0; k < wide; ++k) out.at[k] = add ? out.at[k] + total[which][j + k] : total[which][j + k];
      store(to + j, out);
    }
  }
};

// Not by way of this GPU's first-level cache, which does not know what other GPUs write.
template <int N>
__device__ __forceinline__ Pack<bf16, N> load_remote(const bf16* from) {
  Pack<bf16, N> pack;
  if constexpr (N == 8) {
    *reinterpret_cast<uint4*>(&pack) = __ldcg(reinterpret_cast<const uint4*>(from));
  } else {
    static_assert(N == 1);
    *reinterpret_cast<unsigned short*>(&pack) = __ldcg(reinterpret_cast<const unsigned short*>(from));
  }
  return pack;
}

template <int N>
__device__ void add_parts(const PeerCall& c, const PeerSum& s, const bf16* const* parts) {
  constexpr int ranks_at_once = 4;
  const long long packs = s.count / N, step = static_cast<long long>(gridDim.x) * threads;
  for (long long i = static_cast<long long>(blockIdx.x) * threads + threadIdx.x; i < packs; i += 2 * step) {
    const bool two = i + step < packs;
    const long long second = two ? i + step : i;
    TwoSums<N> sums;
    for (int first = 0; first < c.size; first += ranks_at_once) {
      Pack<bf16, N> terms[ranks_at_once][2];
#pragma unroll
      for (int q = 0; q < ranks_at_once; ++q) {
        if (first + q >= c.size) continue;
        terms[q][0] = load_remote<N>(parts[first + q] + i * N);
        terms[q][1] = load_remote<N>(parts[first + q] + second * N);
      }
#pragma unroll
      for (int q = 0; q < ranks_at_once; ++q) {
        if (first + q < c.size) sums.take(terms[q][0], terms[q][1]);
      }
    }
    sums.put(0, s.sum + i * N, s.add);
    if (two) sums.put(1, s.sum + second * N, s.add);
  }
}

template <int N>
__global__ void __launch_bounds__(threads)
    sum_parts_kernel(const __grid_constant__ PeerCall c, const __grid_constant__ PeerSum s) {
  __shared__ const bf16* parts[most_peers];
  const int p = static_cast<int>(threadIdx.x);
  const long long bytes = s.count * static_cast<long long>(sizeof(bf16));
  if (blockIdx.x == 0 && p < c.size && p != c.rank) tell(c, p, {c.call, -bytes, s.place, 0, s.piece, {}});
  if (!wait_for_notes(c)) return;
  bool fits = true;
  if (p < c.size) {
    const std::byte* begin = s.parts;
    if (p != c.rank) {
      const volatile PeerNote& note = c.boards[c.rank]->notes[p];
      fits = note.bytes == -bytes;
      if (!fits) report(c.faults, Fault::peer_call, c.rank, -bytes, p, note.bytes);
      begin = c.pieces[note.piece][p] + note.place;
    }
    parts[p] = reinterpret_cast<const bf16*>(begin + c.rank * bytes);
  }
  if (__syncthreads_and(fits)) add_parts<N>(c, s, parts);
  finish(c);
}

}  // namespace

void exchange_rows(const PeerCall& call, const PeerRows& rows, int blocks, cudaStream_t stream) {
  exchange_rows_kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(call, rows);
  ANANKE_CUDA_LAUNCHED("all_to_all_rows");
}

void sum_parts(const PeerCall& call, const PeerSum& sum, int blocks, cudaStream_t stream) {
  // Whether packs are whole is known of this rank's own addresses; pieces and places are multiples of 16 bytes.
  if (sum.count % 8 == 0 && packs_fit<float, 4>(4, {sum.sum})) {
    sum_parts_kernel<8><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(call, sum);
  } else {
    sum_parts_kernel<1><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(call, sum);
  }
  ANANKE_CUDA_LAUNCHED("sum_parts");
}

}  // namespace ananke::cuda
