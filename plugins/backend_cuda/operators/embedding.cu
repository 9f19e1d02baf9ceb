#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/embedding.h"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "runtime/operators/arguments.h"

namespace ananke::cuda {
namespace {

constexpr int threads = 256;
constexpr int at_once = 8;    // tokens that a thread compares between two barriers
constexpr int listed = 1024;  // positions of a token that are looked up before they are summed

// A block per token.
template <int N, class T>
__global__ void forward_kernel(std::int64_t vocabulary, std::int64_t packs, const int* tokens, const T* table, T* y,
                               FaultSink faults) {
  const std::int64_t t = blockIdx.x;
  const int token = tokens[t];
  if (token < 0 || token >= vocabulary) {
    if (threadIdx.x == 0) report(faults, Fault::embedding_token, token, t, vocabulary);
    return;
  }
  for (std::int64_t i = threadIdx.x; i < packs; i += threads) {
    store(y + (t * packs + i) * N, load<N>(table + (token * packs + i) * N));
  }
}

// Whether tokens [begin, begin + threads * at_once) below `end` hold `token`. The same answer in every thread.
__device__ bool any_in(const int* tokens, std::int64_t end, std::int64_t begin, int token) {
  bool found = false;
#pragma unroll
  for (int j = 0; j < at_once; ++j) {
    const std::int64_t at = begin + j * threads + threadIdx.x;
    found |= at < end && tokens[at] == token;
  }
  return __syncthreads_or(found);
}

__device__ bool seen_before(const int* tokens, std::int64_t t, int token) {
  for (std::int64_t begin = 0; begin < t; begin += threads * at_once) {
    if (any_in(tokens, t, begin, token)) return true;
  }
  return false;
}

// Appends to `list` the positions in [begin, begin + threads) that hold `token`, ascending, and gives the new length.
__device__ int append(const int* tokens, std::int64_t count, std::int64_t begin, int token, int length, int* list,
                      int* per_warp) {
  const std::int64_t at = begin + threadIdx.x;
  const bool here = at < count && tokens[at] == token;
  const unsigned lanes = __ballot_sync(0xffffffffu, here);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();  // who still reads `per_warp`, or `list`
  if (lane == 0) per_warp[warp] = __popc(lanes);
  __syncthreads();
  int before = length, total = length;
  for (int w = 0; w < threads / 32; ++w) {
    if (w < warp) before += per_warp[w];
    total += per_warp[w];
  }
  if (here) list[before + __popc(lanes & ((1u << lane) - 1))] = static_cast<int>(at);
  __syncthreads();
  return total;
}

// dtable[token] += rows of dy, in the order of the list. Threads share the columns.
template <class T>
__device__ void add_rows(std::int64_t hidden, const T* dy, const int* list, int length, float* row) {
  for (std::int64_t j = threadIdx.x; j < hidden; j += threads) {
    float sum = row[j];
    int i = 0;
    for (; i + 8 <= length; i += 8) {  // eight loads under way
      float terms[8];
#pragma unroll
      for (int u = 0; u < 8; ++u) terms[u] = to_float(dy[list[i + u] * hidden + j]);
#pragma unroll
      for (int u = 0; u < 8; ++u) sum += terms[u];
    }
    for (; i < length; ++i) sum += to_float(dy[list[i] * hidden + j]);
    row[j] = sum;
  }
}

// A block per position; the block of a token's first position sums all its rows.
template <class T>
__global__ void backward_kernel(std::int64_t count, std::int64_t vocabulary, std::int64_t hidden, const int* tokens,
                                const T* dy, float* dtable, FaultSink faults) {
  __shared__ int list[listed];
  __shared__ int per_warp[threads / 32];
  const std::int64_t t = blockIdx.x;
  const int token = tokens[t];
  if (token < 0 || token >= vocabulary) {
    if (threadIdx.x == 0) report(faults, Fault::embedding_token, token, t, vocabulary);
    return;
  }
  if (seen_before(tokens, t, token)) return;
  float* row = dtable + token * hidden;
  int length = 0;
  for (std::int64_t begin = t; begin < count; begin += threads * at_once) {
    if (!any_in(tokens, count, begin, token)) continue;
    for (int j = 0; j < at_once; ++j) {
      length = append(tokens, count, begin + j * threads, token, length, list, per_warp);
      if (length + threads <= listed) continue;
      add_rows(hidden, dy, list, length, row);
      length = 0;
    }
  }
  add_rows(hidden, dy, list, length, row);
}

}  // namespace

void CudaEmbedding::forward(Stream& stream, const Forward& a) {
  const DType elements = elements_of(a.y);
  const auto [tokens, vocabulary, hidden] = arguments::check(a, elements);
  if (tokens == 0 || hidden == 0) return;
  const auto blocks = static_cast<unsigned>(tokens);
  with_elements(elements, [&, vocabulary = vocabulary, hidden = hidden](auto element) {
    using T = decltype(element);
    with_packs<T>(hidden, {a.table.data, a.y.data}, [&](auto width) {
      constexpr int N = decltype(width)::value;
      forward_kernel<N><<<blocks, threads, 0, raw(stream)>>>(vocabulary, hidden / N, data<int>(a.tokens),
                                                             data<const T>(a.table), data<T>(a.y), faults_.sink());
      ANANKE_CUDA_LAUNCHED("embedding forward");
    });
  });
}

// The contract gives no workspace to sort in: a token's rows are found by looking through all tokens.
void CudaEmbedding::backward(Stream& stream, const Backward& a) {
  const DType elements = elements_of(a.dy);
  const auto [tokens, vocabulary, hidden] = arguments::check(a, elements);
  if (tokens == 0 || hidden == 0) return;
  with_elements(elements, [&, tokens = tokens, vocabulary = vocabulary, hidden = hidden](auto element) {
    using T = decltype(element);
    backward_kernel<<<static_cast<unsigned>(tokens), threads, 0, raw(stream)>>>(
        tokens, vocabulary, hidden, data<int>(a.tokens), data<const T>(a.dy), data<float>(a.dtable), faults_.sink());
    ANANKE_CUDA_LAUNCHED("embedding backward");
  });
}

}  // namespace ananke::cuda
