// Exchange at the ranks that hold the experts: copies into rows by expert, and per-copy sums back.
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/exchange.h"
#include "plugins/backend_cuda/operators/exchange_parts.cuh"
#include "plugins/backend_cuda/operators/expert_sort.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/reduce.cuh"
#include "plugins/backend_cuda/operators/shared_memory.cuh"
#include "runtime/operators/arguments.h"
#include "runtime/operators/carve.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

using CopySizes = arguments::ExchangeCopySizes;
using ExpandSizes = arguments::ExchangeExpandSizes;

constexpr int sort_blocks = 128, sort_threads = 256, sort_warps = sort_threads / 32;
constexpr std::int64_t most_choices = 32;  // a lane each

// One thread: how many copies arrive; none where they are more than there is room for.
__global__ void arrive_kernel(std::int64_t ranks, std::int64_t chunks, std::int64_t chunk, std::int64_t capacity,
                              const std::int32_t* arrived, std::int32_t* count, FaultSink faults) {
  long long sum = 0;
  bool good = true;
  for (std::int64_t p = 0; p < ranks; ++p) {
    const std::int32_t here = arrived[p * chunks + chunk];
    good = good && here >= 0;
    sum += here;
  }
  if (!good || sum > capacity) {
    report(faults, Fault::arrived_copies, sum, capacity);
    sum = 0;
  }
  *count = static_cast<std::int32_t>(sum);
}

struct Sort {
  std::int64_t k, first_expert;
  int local;
  WireRows wire;
  const std::int32_t* count;
};

// Copies of one warp, one after the other; warps have ranges in order.
struct WarpRange {
  std::int64_t begin, end;
  __device__ WarpRange(std::int64_t count, int warp) {
    const std::int64_t each = (count + sort_blocks * sort_warps - 1) / (sort_blocks * sort_warps);
    begin = min((static_cast<std::int64_t>(blockIdx.x) * sort_warps + warp) * each, count);
    end = min(begin + each, count);
  }
};

// The local expert of lane's choice of a copy, -1 where another rank holds it or there is no such choice.
__device__ int local_expert(const Sort& n, std::int64_t copy) {
  const int lane = threadIdx.x % 32;
  if (lane >= n.k) return -1;
  const std::int64_t expert = n.wire.indices(copy)[lane] - n.first_expert;
  return expert >= 0 && expert < n.local ? static_cast<int>(expert) : -1;
}

// own[e] of each warp: its copies that choose e. Shared [sort_warps, local].
__device__ void count_own(const Sort& n, const WarpRange& range, int* all, int* own) {
  for (int i = threadIdx.x; i < sort_warps * n.local; i += sort_threads) all[i] = 0;
  __syncthreads();
  for (std::int64_t copy = range.begin; copy < range.end; ++copy) {
    const int expert = local_expert(n, copy);
    if (expert >= 0) atomicAdd(&own[expert], 1);
  }
  __syncthreads();
}

__global__ void count_kernel(Sort n, std::int32_t* counts) {
  extern __shared__ int all[];
  const int warp = threadIdx.x / 32;
  count_own(n, WarpRange(*n.count, warp), all, all + warp * n.local);
  for (int e = threadIdx.x; e < n.local; e += sort_threads) {
    int sum = 0;
    for (int w = 0; w < sort_warps; ++w) sum += all[w * n.local + e];
    counts[blockIdx.x * n.local + e] = sum;
  }
}

// One thread: rows that do not fit are left out, all of them.
__global__ void check_rows_kernel(int local, std::int64_t capacity, std::int32_t* offsets, std::int32_t* count,
                                  FaultSink faults) {
  if (offsets[local] <= capacity) return;
  report(faults, Fault::expanded_rows, offsets[local], capacity);
  for (int e = 0; e <= local; ++e) offsets[e] = 0;
  *count = 0;
}

// Rows of copies: by expert, then by copy; the entries of a copy by row.
__global__ void place_kernel(Sort n, const std::int32_t* before, const std::int32_t* offsets, std::int32_t* rows,
                             std::int32_t* slots, float* weights) {
  extern __shared__ int all[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int* next = all + warp * n.local;
  const WarpRange range(*n.count, warp);
  count_own(n, range, all, next);
  for (int e = threadIdx.x; e < n.local; e += sort_threads) {
    int at = offsets[e] + before[blockIdx.x * n.local + e];
    for (int w = 0; w < sort_warps; ++w) {
      const int count = all[w * n.local + e];
      all[w * n.local + e] = at;
      at += count;
    }
  }
  __syncthreads();
  for (std::int64_t copy = range.begin; copy < range.end; ++copy) {
    const int expert = local_expert(n, copy);
    int row = -1;
    if (expert >= 0) row = next[expert]++;  // a token has an expert once: no two lanes meet
    int entry = 0;
    for (int j = 0; j < n.k; ++j) {
      const int other = __shfl_sync(all_lanes, row, j);
      entry += other >= 0 && other < row;
    }
    const int entries = __popc(__ballot_sync(all_lanes, row >= 0));
    const std::int64_t at = copy * n.k;
    if (row >= 0) {
      rows[at + entry] = row;
      slots[at + entry] = lane;
      weights[at + entry] = n.wire.floats(copy)[lane];
    }
    if (lane >= entries && lane < n.k) {
      rows[at + lane] = -1;
      slots[at + lane] = -1;
      weights[at + lane] = 0;
    }
    __syncwarp();
  }
}

// What is known of the copies, as kernels see it.
struct CopyTable {
  std::int64_t capacity, k;
  const std::int32_t *count, *rows, *slots;
  const float* weights;
  explicit CopyTable(const Exchange::Copies& copies)
      : capacity(copies.rows.shape[0]),
        k(copies.rows.shape[1]),
        count(data<const std::int32_t>(copies.count)),
        rows(data<const std::int32_t>(copies.rows)),
        slots(data<const std::int32_t>(copies.slots)),
        weights(data<const float>(copies.weights)) {}
  // Whether this block's copy is one that there is.
  __device__ bool has(std::int64_t copy, const FaultSink& faults) const {
    const std::int32_t number = *count;
    if (number >= 0 && number <= capacity) return copy < number;
    if (copy == 0 && threadIdx.x == 0) report(faults, Fault::count_of_copies, number, capacity);
    return false;
  }
};

// A block per copy: its values become those of its rows; its weights, where row_weights is wanted, go with them.
template <int N, class V, class T>
__global__ void move_kernel(CopyTable copies, std::int64_t hidden, WireRows wire, T* rows, float* row_weights,
                            FaultSink faults) {
  const std::int64_t copy = blockIdx.x;
  if (!copies.has(copy, faults)) return;
  for (std::int64_t m = copy * copies.k; m < (copy + 1) * copies.k && copies.rows[m] >= 0; ++m) {
    const std::int64_t row = copies.rows[m];
    if (row_weights && threadIdx.x == 0) row_weights[row] = copies.weights[m];
    for (std::int64_t i = threadIdx.x; i < hidden / N; i += blockDim.x) {
      float values[N];
      read(wire.values<const V>(copy) + i * N, values);
      write(rows + row * hidden + i * N, values);
    }
  }
}

// A block per copy: wire[i] = sum over its entries of weight (1 where not `weighted`) * row, in their order; with
// d_row_weights [row capacity], those of its slots follow it on the wire.
template <int N, class V, class T>
__global__ void sum_kernel(CopyTable copies, std::int64_t hidden, bool weighted, const T* by_row,
                           const float* d_row_weights, WireRows wire, FaultSink faults) {
  const std::int64_t copy = blockIdx.x, first = copy * copies.k;
  if (!copies.has(copy, faults)) return;
  for (std::int64_t i = threadIdx.x; i < hidden / N; i += blockDim.x) {
    float sum[N] = {};
    for (std::int64_t m = first; m < first + copies.k && copies.rows[m] >= 0; ++m) {
      const float weight = weighted ? copies.weights[m] : 1.0f;
      float values[N];
      read(by_row + copies.rows[m] * hidden + i * N, values);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += weight * values[j];
    }
    write(wire.values<V>(copy) + i * N, sum);
  }
  for (std::int64_t j = threadIdx.x; d_row_weights && j < copies.k; j += blockDim.x) {
    float value = 0;
    for (std::int64_t m = first; m < first + copies.k && copies.rows[m] >= 0; ++m) {
      if (copies.slots[m] == j) value = d_row_weights[copies.rows[m]];
    }
    wire.floats(copy)[j] = value;
  }
}

}  // namespace

std::size_t CudaExchange::workspace(std::int64_t local_experts) const {
  Carve carve;
  carve.take<std::int32_t>(sort_blocks * local_experts);
  return carve.used();
}

void CudaExchange::expand(Stream& stream, const Expand& a) {
  constexpr const char* op = "exchange expand";
  const DType elements = elements_of(a.rows);
  const ExpandSizes n = arguments::check(a, elements);
  expect_region(op, "workspace", a.workspace, workspace(n.local));
  ANANKE_CHECK(n.k <= most_choices, "{}: {} choices for each token, but the CUDA backend takes at most {}", op, n.k,
               most_choices);
  const std::size_t shared = static_cast<std::size_t>(n.local) * sort_warps * sizeof(int);
  ANANKE_CHECK(shared <= facts_.shared_per_block_most, "{}: {} local experts, but the CUDA backend takes at most {}",
               op, n.local, facts_.shared_per_block_most / (sort_warps * sizeof(int)));
  const cudaStream_t on = raw(stream);
  const WireRows wire(a.wire, a.row);
  auto* count = data<std::int32_t>(a.copies.count);
  auto* offsets = data<std::int32_t>(a.offsets);
  std::int32_t* counts = Carve(a.workspace).take<std::int32_t>(sort_blocks * n.local);
  const auto local = static_cast<int>(n.local);
  const Sort sort{n.k, a.first_expert, local, wire, count};
  arrive_kernel<<<1, 1, 0, on>>>(a.arrived.shape[0], a.arrived.shape[1], a.chunk, n.copies,
                                 data<const std::int32_t>(a.arrived), count, faults_.sink());
  ANANKE_CUDA_LAUNCHED(op);
  allow_shared(count_kernel, shared);
  count_kernel<<<sort_blocks, sort_threads, shared, on>>>(sort, counts);
  ANANKE_CUDA_LAUNCHED(op);
  scan_counts(on, sort_blocks, local, counts, offsets);
  check_rows_kernel<<<1, 1, 0, on>>>(local, n.rows, offsets, count, faults_.sink());
  ANANKE_CUDA_LAUNCHED(op);
  if (n.copies == 0) return;
  allow_shared(place_kernel, shared);
  place_kernel<<<sort_blocks, sort_threads, shared, on>>>(sort, counts, offsets, data<std::int32_t>(a.copies.rows),
                                                          data<std::int32_t>(a.copies.slots),
                                                          data<float>(a.copies.weights));
  ANANKE_CUDA_LAUNCHED(op);
  with_wire(elements, a.row, {a.rows.data}, [&](auto element, auto value, auto width) {
    using T = decltype(element);
    using V = decltype(value);
    constexpr int N = decltype(width)::value;
    move_kernel<N, V><<<static_cast<unsigned>(n.copies), exchange_threads(n.hidden), 0, on>>>(
        CopyTable(a.copies), n.hidden, wire, data<T>(a.rows), nullptr, faults_.sink());
    ANANKE_CUDA_LAUNCHED(op);
  });
}

namespace {

void sum_rows(const char* op, cudaStream_t on, DType elements, const CopySizes& n, bool weighted,
              const TensorView& by_row, const Exchange::Copies& copies, const float* d_row_weights, const WireRow& row,
              const TensorView& wire, const Faults& faults) {
  if (n.copies == 0) return;
  with_wire(elements, row, {by_row.data}, [&](auto element, auto value, auto width) {
    using T = decltype(element);
    using V = decltype(value);
    constexpr int N = decltype(width)::value;
    sum_kernel<N, V><<<static_cast<unsigned>(n.copies), exchange_threads(n.hidden), 0, on>>>(
        CopyTable(copies), n.hidden, weighted, data<const T>(by_row), d_row_weights, WireRows(wire, row),
        faults.sink());
    ANANKE_CUDA_LAUNCHED(op);
  });
}

}  // namespace

void CudaExchange::combine(Stream& stream, const Combine& a) {
  const DType elements = elements_of(a.outputs);
  const CopySizes n = arguments::check(a, elements);
  sum_rows("exchange combine", raw(stream), elements, n, true, a.outputs, a.copies, nullptr, a.row, a.wire, faults_);
}

void CudaExchange::combine_backward(Stream& stream, const CombineBackward& a) {
  constexpr const char* op = "exchange combine_backward";
  const DType elements = elements_of(a.d_weighted);
  const CopySizes n = arguments::check(a, elements);
  if (n.copies == 0) return;
  with_wire(elements, a.row, {a.d_weighted.data}, [&](auto element, auto value, auto width) {
    using T = decltype(element);
    using V = decltype(value);
    constexpr int N = decltype(width)::value;
    move_kernel<N, V><<<static_cast<unsigned>(n.copies), exchange_threads(n.hidden), 0, raw(stream)>>>(
        CopyTable(a.copies), n.hidden, WireRows(a.wire, a.row), data<T>(a.d_weighted), data<float>(a.row_weights),
        faults_.sink());
    ANANKE_CUDA_LAUNCHED(op);
  });
}

void CudaExchange::expand_backward(Stream& stream, const ExpandBackward& a) {
  const DType elements = elements_of(a.d_rows);
  const CopySizes n = arguments::check(a, elements);
  sum_rows("exchange expand_backward", raw(stream), elements, n, false, a.d_rows, a.copies,
           data<const float>(a.d_row_weights), a.row, a.wire, faults_);
}

}  // namespace ananke::cuda
