#include <cuda_fp8.h>

#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.cuh"
#include "plugins/backend_cuda/operators/faults.cuh"
#include "plugins/backend_cuda/operators/wire.h"
#include "runtime/operators/arguments.h"

namespace ananke::cuda {
namespace {

constexpr int threads = 256;

// y[row][i] = x[row * columns + first + i]; blockIdx.y strides over rows.
template <int N>
__global__ void to_bf16_kernel(std::int64_t rows, std::int64_t columns, std::int64_t first, std::int64_t packs,
                               const float* x, bf16* y) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= packs) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const Pack<float, N> from = load<N>(x + row * columns + first + i * N);
    Pack<bf16, N> to;
#pragma unroll
    for (int j = 0; j < N; ++j) to.at[j] = from_float<bf16>(from.at[j]);
    store(y + (row * packs + i) * N, to);
  }
}

template <int N>
__global__ void from_bf16_kernel(std::int64_t packs, const bf16* x, float* y) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= packs) return;
  const Pack<bf16, N> from = load<N>(x + i * N);
  Pack<float, N> to;
#pragma unroll
  for (int j = 0; j < N; ++j) to.at[j] = to_float(from.at[j]);
  store(y + i * N, to);
}

template <int N>
__global__ void landing_sum_kernel(std::int64_t ranks, std::int64_t packs, bool add, const bf16* landed, float* sum) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= packs) return;
  float total[N] = {};
#pragma unroll 4
  for (std::int64_t p = 0; p < ranks; ++p) {
    const Pack<bf16, N> term = load<N>(landed + (p * packs + i) * N);
#pragma unroll
    for (int j = 0; j < N; ++j) total[j] += to_float(term.at[j]);
  }
  Pack<float, N> out{};
  if (add) out = load<N>(sum + i * N);
#pragma unroll
  for (int j = 0; j < N; ++j) out.at[j] = add ? out.at[j] + total[j] : total[j];
  store(sum + i * N, out);
}

constexpr int tile_threads = 512;  // of what turns blocks of 128 x 128 to fp8 and back
constexpr int per_thread = Wire::block * Wire::block / tile_threads;  // elements

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffff; }  // ordered as |x| is
__device__ __forceinline__ bool is_finite(float x) { return magnitude(x) < 0x7f800000; }

// e4m3 of numbers of at most 448, or not finite, which give NaN; to the nearest, ties to even.
__device__ __forceinline__ unsigned char e4m3_of(float x) {
  return is_finite(x) ? __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3) : 0x7f;
}
// Two at once, which is one instruction; the first in the low byte.
__device__ __forceinline__ unsigned e4m3_of(float x, float y) {
  unsigned codes = __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
  if (!is_finite(x)) codes = (codes & 0xff00) | 0x7f;
  if (!is_finite(y)) codes = (codes & 0x00ff) | 0x7f00;
  return codes;
}

__device__ __forceinline__ float from_e4m3(unsigned char code) {
  return __half2float(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3));
}
__device__ __forceinline__ float2 from_two_e4m3(unsigned codes) {
  return __half22float2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3));
}

// Exponent + 127 of the smallest power of two s with largest / s <= 448 = 0.875 x 2^9.
__device__ int scale_of(float largest) {
  if (largest == 0) return 127;
  int exponent = 0;
  const float fraction = frexpf(largest, &exponent);
  return max(exponent - (fraction <= 0.875f ? 9 : 8), -126) + 127;
}

// One block of a piece: its columns, and where its rows begin in the matrix.
struct BlockPlace {
  std::int64_t first_row, first_column, columns;
};

__device__ std::int64_t across(const Wire::BlockPiece& piece) {
  return (piece.columns + Wire::block - 1) / Wire::block;
}

__device__ std::int64_t scales_in(const Wire::BlockPiece& piece) {
  if (piece.count == 0) return 0;
  const std::int64_t rows = Wire::block * piece.columns;
  return ((piece.begin + piece.count - 1) / rows - piece.begin / rows + 1) * across(piece);
}

// Blocks of a piece are counted in 32 bits: each has 16 Ki elements.
__device__ BlockPlace place_of(const Wire::BlockPiece& piece, std::int64_t scale) {
  const auto index = static_cast<unsigned>(scale), in_row = static_cast<unsigned>(across(piece));
  const std::int64_t row = piece.begin / piece.columns / Wire::block + index / in_row;
  const std::int64_t column = static_cast<std::int64_t>(index % in_row) * Wire::block;
  return {row * Wire::block, column, min(static_cast<std::int64_t>(Wire::block), piece.columns - column)};
}

// A thread's packs of N columns of one block, equally far apart.
template <int N>
struct ThreadPacks {
  static constexpr int count = per_thread / N, in_row = Wire::block / N, rows = tile_threads / in_row;
  std::int64_t first, step, size;
  __device__ ThreadPacks(const Wire::BlockPiece& piece, const BlockPlace& place) {
    const std::int64_t column = threadIdx.x % in_row * N, row = place.first_row + threadIdx.x / in_row;
    first = row * piece.columns + place.first_column + column - piece.begin;
    step = rows * piece.columns;
    size = column < place.columns ? piece.count : 0;
  }
  // Place within the piece, or -1 where the piece has none.
  __device__ std::int64_t at(int index) const {
    const std::int64_t place = first + index * step;
    return place >= 0 && place < size ? place : -1;
  }
};

// Whether packs of N are whole and lie where they can be accessed at once.
template <int N, class T>
__device__ bool in_packs(const Wire::BlockPiece& piece, const T* values, const unsigned char* bytes) {
  const std::int64_t sizes = piece.columns | piece.begin | piece.count;
  return sizes % N == 0 && reinterpret_cast<std::uintptr_t>(values + piece.values) % (N * sizeof(T)) == 0 &&
         reinterpret_cast<std::uintptr_t>(bytes + piece.codes) % N == 0;
}

__device__ bool lies_inside(const Wire::BlockPiece& piece, std::int64_t index, std::int64_t values, std::int64_t bytes,
                            const FaultSink& faults) {
  const bool good = piece.columns > 0 && piece.begin >= 0 && piece.count >= 0 && piece.values >= 0 &&
                    piece.codes >= 0 && piece.scales >= 0 && piece.values + piece.count <= values &&
                    piece.codes + piece.count <= bytes && piece.scales + scales_in(piece) <= bytes;
  if (!good && threadIdx.x == 0 && blockIdx.y == 0) {
    report(faults, Fault::wire_piece, index, piece.count, piece.columns, values, bytes);
  }
  return good;
}

// Where a block's threads agree on its scale.
struct ScaleOf {
  unsigned* per_warp;  // shared
  unsigned char* scale;

  // From the largest finite magnitude of each thread's numbers; gives what they are multiplied by.
  __device__ float take(unsigned mine) const {
    mine = __reduce_max_sync(0xffffffffu, mine);
    __syncthreads();  // who still reads `per_warp`
    if (threadIdx.x % 32 == 0) per_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    unsigned most = 0;
    for (int w = 0; w < tile_threads / 32; ++w) most = max(most, per_warp[w]);
    const int exponent = scale_of(__uint_as_float(most));
    if (threadIdx.x == 0) *scale = static_cast<unsigned char>(exponent);
    return ldexpf(1.0f, 127 - exponent);
  }
};

// Values wait in registers for the scale.
__device__ void quantise_block(const ThreadPacks<4>& packs, const float* values, unsigned char* codes,
                               const ScaleOf& scale) {
  constexpr int count = ThreadPacks<4>::count;
  Pack<float, 4> x[count];
  unsigned most = 0;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const std::int64_t at = packs.at(i);
    x[i] = at < 0 ? Pack<float, 4>{} : load<4>(values + at);
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) most = max(most, is_finite(x[i].at[j]) ? magnitude(x[i].at[j]) : 0u);
  }
  const float by = scale.take(most);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const std::int64_t at = packs.at(i);
    if (at < 0) continue;
    const unsigned low = e4m3_of(__fmul_rn(x[i].at[0], by), __fmul_rn(x[i].at[1], by));
    const unsigned high = e4m3_of(__fmul_rn(x[i].at[2], by), __fmul_rn(x[i].at[3], by));
    *reinterpret_cast<unsigned*>(codes + at) = low | high << 16;
  }
}

// The same one by one, each read twice.
__device__ void quantise_block(const ThreadPacks<1>& packs, const float* values, unsigned char* codes,
                               const ScaleOf& scale) {
  unsigned most = 0;
#pragma unroll 1
  for (int i = 0; i < ThreadPacks<1>::count; ++i) {
    const std::int64_t at = packs.at(i);
    if (at >= 0 && is_finite(values[at])) most = max(most, magnitude(values[at]));
  }
  const float by = scale.take(most);
#pragma unroll 1
  for (int i = 0; i < ThreadPacks<1>::count; ++i) {
    const std::int64_t at = packs.at(i);
    if (at >= 0) codes[at] = e4m3_of(__fmul_rn(values[at], by));
  }
}

// A code times its scale is exact in bf16, too, so T is only how it is stored: N of them in 16 bytes.
template <int N, class T>
__device__ void dequantise_block(const ThreadPacks<N>& packs, const unsigned char* codes, float by, T* values) {
  constexpr int count = ThreadPacks<N>::count, words = N / 4;
  Pack<unsigned, words> from[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const std::int64_t at = packs.at(i);
    from[i] = at < 0 ? Pack<unsigned, words>{} : load<words>(reinterpret_cast<const unsigned*>(codes + at));
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const std::int64_t at = packs.at(i);
    if (at < 0) continue;
    Pack<T, N> x;
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      const float2 two = from_two_e4m3(from[i].at[j / 4] >> (j % 4 * 8));
      x.at[j] = from_float<T>(__fmul_rn(two.x, by));
      x.at[j + 1] = from_float<T>(__fmul_rn(two.y, by));
    }
    store(values + at, x);
  }
}

template <class T>
__device__ void dequantise_block(const ThreadPacks<1>& packs, const unsigned char* codes, float by, T* values) {
#pragma unroll 1
  for (int i = 0; i < ThreadPacks<1>::count; ++i) {
    const std::int64_t at = packs.at(i);
    if (at >= 0) values[at] = from_float<T>(__fmul_rn(from_e4m3(codes[at]), by));
  }
}

// blockIdx.x: the piece; blockIdx.y strides over its blocks. The bounds keep several blocks on an SM.
__global__ void __launch_bounds__(tile_threads, 2)
    quantise_kernel(std::int64_t values_size, std::int64_t bytes_size, const Wire::BlockPiece* pieces,
                    const float* values, unsigned char* bytes, FaultSink faults) {
  __shared__ unsigned per_warp[tile_threads / 32];
  const Wire::BlockPiece piece = pieces[blockIdx.x];
  if (!lies_inside(piece, blockIdx.x, values_size, bytes_size, faults)) return;
  const bool packed = in_packs<4>(piece, values, bytes);
  const std::int64_t scales = scales_in(piece);
  for (std::int64_t i = blockIdx.y; i < scales; i += gridDim.y) {
    const BlockPlace place = place_of(piece, i);
    const ScaleOf scale{per_warp, bytes + piece.scales + i};
    if (packed) {
      quantise_block(ThreadPacks<4>(piece, place), values + piece.values, bytes + piece.codes, scale);
    } else {
      quantise_block(ThreadPacks<1>(piece, place), values + piece.values, bytes + piece.codes, scale);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, sizeof(T) == 2 ? 3 : 2)
    dequantise_kernel(std::int64_t values_size, std::int64_t bytes_size, const Wire::BlockPiece* pieces,
                      const unsigned char* bytes, T* values, FaultSink faults) {
  constexpr int N = 16 / sizeof(T);
  const Wire::BlockPiece piece = pieces[blockIdx.x];
  if (!lies_inside(piece, blockIdx.x, values_size, bytes_size, faults)) return;
  const bool packed = in_packs<N>(piece, values, bytes);
  const std::int64_t scales = scales_in(piece);
  for (std::int64_t i = blockIdx.y; i < scales; i += gridDim.y) {
    const BlockPlace place = place_of(piece, i);
    const float by = ldexpf(1.0f, bytes[piece.scales + i] - 127);
    if (packed) {
      dequantise_block(ThreadPacks<N>(piece, place), bytes + piece.codes, by, values + piece.values);
    } else {
      dequantise_block(ThreadPacks<1>(piece, place), bytes + piece.codes, by, values + piece.values);
    }
  }
}

// Pieces by their number; blocks of a piece as if all pieces were equal: one each, and where there are many, up to
// eight for each block of threads, which looks at its piece once.
dim3 grid_of(const TensorView& pieces, const TensorView& values) {
  constexpr std::int64_t enough = 2048;  // blocks of threads
  const std::int64_t count = pieces.shape[0], blocks = blocks_for(values.elements(), Wire::block * Wire::block);
  const std::int64_t each = blocks_for(blocks, count);
  const std::int64_t fewest = std::max(blocks_for(each, 8), blocks_for(enough, count));
  return {static_cast<unsigned>(count),
          static_cast<unsigned>(std::clamp<std::int64_t>(std::min(each, fewest), 1, 65535))};
}

const Wire::BlockPiece* pieces_in(const TensorView& table) {
  static_assert(sizeof(Wire::BlockPiece) == Wire::fields * sizeof(std::int64_t));
  return static_cast<const Wire::BlockPiece*>(table.data);
}

// body(integral_constant<int, N>): 4 elements at once where both sides allow it, else 1.
template <class Body>
void with_fours(std::initializer_list<std::int64_t> sizes, const void* floats, const void* halves, const Body& body) {
  const bool whole = std::all_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size % 4 == 0; });
  if (whole && packs_fit<float, 4>(4, {floats}) && packs_fit<bf16, 4>(4, {halves})) {
    body(std::integral_constant<int, 4>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

}  // namespace

void CudaWire::to_bf16(Stream& stream, const ToBf16& a) {
  arguments::check(a);
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1], wanted = a.y.shape[1];
  if (rows == 0 || wanted == 0) return;
  with_fours({columns, wanted, a.first}, a.x.data, a.y.data, [&](auto width) {
    constexpr int N = decltype(width)::value;
    const dim3 grid(static_cast<unsigned>(blocks_for(wanted / N, threads)),
                    static_cast<unsigned>(std::min<std::int64_t>(rows, 65535)));
    to_bf16_kernel<N><<<grid, threads, 0, raw(stream)>>>(rows, columns, a.first, wanted / N, data<const float>(a.x),
                                                         data<bf16>(a.y));
    ANANKE_CUDA_LAUNCHED("to_bf16");
  });
}

void CudaWire::from_bf16(Stream& stream, const TensorView& x, const TensorView& y) {
  arguments::check_from_bf16(x, y);
  const std::int64_t n = x.elements();
  if (n == 0) return;
  with_fours({n}, y.data, x.data, [&](auto width) {
    constexpr int N = decltype(width)::value;
    from_bf16_kernel<N><<<static_cast<unsigned>(blocks_for(n / N, threads)), threads, 0, raw(stream)>>>(
        n / N, data<const bf16>(x), data<float>(y));
    ANANKE_CUDA_LAUNCHED("from_bf16");
  });
}

void CudaWire::landing_sum(Stream& stream, const LandingSum& a) {
  arguments::check(a);
  const std::int64_t n = a.sum.elements();
  if (n == 0) return;
  with_fours({n}, a.sum.data, a.landed.data, [&](auto width) {
    constexpr int N = decltype(width)::value;
    landing_sum_kernel<N><<<static_cast<unsigned>(blocks_for(n / N, threads)), threads, 0, raw(stream)>>>(
        a.landed.shape[0], n / N, a.add, data<const bf16>(a.landed), data<float>(a.sum));
    ANANKE_CUDA_LAUNCHED("landing_sum");
  });
}

void CudaWire::quantise(Stream& stream, const TensorView& pieces, const TensorView& values, const TensorView& bytes) {
  arguments::check_pieces("quantise", pieces, values, bytes);
  if (pieces.shape[0] == 0) return;
  quantise_kernel<<<grid_of(pieces, values), tile_threads, 0, raw(stream)>>>(
      values.elements(), bytes.elements(), pieces_in(pieces), data<const float>(values), data<unsigned char>(bytes),
      faults_.sink());
  ANANKE_CUDA_LAUNCHED("quantise");
}

void CudaWire::dequantise(Stream& stream, const TensorView& pieces, const TensorView& bytes, const TensorView& values) {
  const DType elements = elements_of(values);
  arguments::check_pieces("dequantise", pieces, values, bytes, elements);
  if (pieces.shape[0] == 0) return;
  with_elements(elements, [&](auto element) {
    using T = decltype(element);
    dequantise_kernel<<<grid_of(pieces, values), tile_threads, 0, raw(stream)>>>(
        values.elements(), bytes.elements(), pieces_in(pieces), data<const unsigned char>(bytes), data<T>(values),
        faults_.sink());
    ANANKE_CUDA_LAUNCHED("dequantise");
  });
}

}  // namespace ananke::cuda
