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

// e4m3 of numbers of at most 448, or not finite, which give NaN; to the nearest, ties to even.
template <int N>
__device__ __forceinline__ Pack<unsigned char, N> e4m3_of(const Pack<float, N>& x) {
  Pack<unsigned char, N> codes;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const bool finite = (__float_as_uint(x.at[j]) & 0x7fffffff) < 0x7f800000;
    codes.at[j] = finite ? __nv_cvt_float_to_fp8(x.at[j], __NV_SATFINITE, __NV_E4M3) : 0x7f;
  }
  return codes;
}

__device__ __forceinline__ float from_e4m3(unsigned char code) {
  return __half2float(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3));
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

__device__ BlockPlace place_of(const Wire::BlockPiece& piece, std::int64_t scale) {
  const std::int64_t row = piece.begin / piece.columns / Wire::block + scale / across(piece);
  const std::int64_t column = scale % across(piece) * Wire::block;
  return {row * Wire::block, column, min(static_cast<std::int64_t>(Wire::block), piece.columns - column)};
}

// Threads take N columns at once, so many of one row. Of thread `threadIdx.x`, its `index`-th pack of a block: place
// within the piece, or -1 where the piece has none.
template <int N>
__device__ std::int64_t pack_of(const Wire::BlockPiece& piece, const BlockPlace& place, int index) {
  constexpr int across_block = Wire::block / N;
  const std::int64_t column = threadIdx.x % across_block * N;
  const std::int64_t row = place.first_row + threadIdx.x / across_block + index * (threads / across_block);
  const std::int64_t at = row * piece.columns + place.first_column + column - piece.begin;
  return column < place.columns && at >= 0 && at < piece.count ? at : -1;
}

constexpr int per_thread = Wire::block * Wire::block / threads;  // elements

// Whether packs of 4 are whole and lie where they can be accessed at once.
template <class T>
__device__ bool in_fours(const Wire::BlockPiece& piece, const T* values, const unsigned char* bytes) {
  const std::int64_t sizes = piece.columns | piece.begin | piece.count;
  return sizes % 4 == 0 && reinterpret_cast<std::uintptr_t>(values + piece.values) % (4 * sizeof(T)) == 0 &&
         reinterpret_cast<std::uintptr_t>(bytes + piece.codes) % 4 == 0;
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

// The largest of the block's numbers in every thread.
__device__ unsigned largest_of(unsigned mine, unsigned* per_warp) {
  mine = __reduce_max_sync(0xffffffffu, mine);
  __syncthreads();  // who still reads `per_warp`
  if (threadIdx.x % 32 == 0) per_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  unsigned most = 0;
  for (int w = 0; w < threads / 32; ++w) most = max(most, per_warp[w]);
  return most;
}

// Blocks of one piece; blockIdx.y strides over them. Values wait in registers for the scale.
template <int N>
__device__ void quantise_piece(const Wire::BlockPiece& piece, const float* values, unsigned char* bytes,
                               unsigned* per_warp) {
  constexpr int packs = per_thread / N;
  const std::int64_t scales = scales_in(piece);
  for (std::int64_t scale = blockIdx.y; scale < scales; scale += gridDim.y) {
    const BlockPlace place = place_of(piece, scale);
    Pack<float, N> x[packs];
    unsigned most = 0;  // magnitudes are ordered as their bits are
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const std::int64_t at = pack_of<N>(piece, place, i);
      x[i] = at < 0 ? Pack<float, N>{} : load<N>(values + piece.values + at);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const unsigned size = __float_as_uint(x[i].at[j]) & 0x7fffffff;
        most = max(most, size < 0x7f800000 ? size : 0u);
      }
    }
    const int exponent = scale_of(__uint_as_float(largest_of(most, per_warp)));
    if (threadIdx.x == 0) bytes[piece.scales + scale] = static_cast<unsigned char>(exponent);
    const float inverse = ldexpf(1.0f, 127 - exponent);
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const std::int64_t at = pack_of<N>(piece, place, i);
      if (at < 0) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) x[i].at[j] = __fmul_rn(x[i].at[j], inverse);
      store(bytes + piece.codes + at, e4m3_of<N>(x[i]));
    }
  }
}

// A code times its scale is exact in bf16, too, so T is only how it is stored.
template <int N, class T>
__device__ void dequantise_piece(const Wire::BlockPiece& piece, const unsigned char* bytes, T* values) {
  constexpr int packs = per_thread / N;
  const std::int64_t scales = scales_in(piece);
  for (std::int64_t scale = blockIdx.y; scale < scales; scale += gridDim.y) {
    const BlockPlace place = place_of(piece, scale);
    const float by = ldexpf(1.0f, bytes[piece.scales + scale] - 127);
    Pack<unsigned char, N> codes[packs];
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const std::int64_t at = pack_of<N>(piece, place, i);
      if (at >= 0) codes[i] = load<N>(bytes + piece.codes + at);
    }
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const std::int64_t at = pack_of<N>(piece, place, i);
      if (at < 0) continue;
      Pack<T, N> x;
#pragma unroll
      for (int j = 0; j < N; ++j) x.at[j] = from_float<T>(__fmul_rn(from_e4m3(codes[i].at[j]), by));
      store(values + piece.values + at, x);
    }
  }
}

// blockIdx.x: the piece. The bounds keep several blocks on an SM.
__global__ void __launch_bounds__(threads, 2)
    quantise_kernel(std::int64_t values_size, std::int64_t bytes_size, const Wire::BlockPiece* pieces,
                    const float* values, unsigned char* bytes, FaultSink faults) {
  __shared__ unsigned per_warp[threads / 32];
  const Wire::BlockPiece piece = pieces[blockIdx.x];
  if (!lies_inside(piece, blockIdx.x, values_size, bytes_size, faults)) return;
  if (in_fours(piece, values, bytes)) {
    quantise_piece<4>(piece, values, bytes, per_warp);
  } else {
    quantise_piece<1>(piece, values, bytes, per_warp);
  }
}

template <class T>
__global__ void __launch_bounds__(threads, 3)
    dequantise_kernel(std::int64_t values_size, std::int64_t bytes_size, const Wire::BlockPiece* pieces,
                      const unsigned char* bytes, T* values, FaultSink faults) {
  const Wire::BlockPiece piece = pieces[blockIdx.x];
  if (!lies_inside(piece, blockIdx.x, values_size, bytes_size, faults)) return;
  if (in_fours(piece, values, bytes)) {
    dequantise_piece<4>(piece, bytes, values);
  } else {
    dequantise_piece<1>(piece, bytes, values);
  }
}

// Pieces by their number; blocks of a piece as if all pieces were equal, at least one.
dim3 grid_of(const TensorView& pieces, const TensorView& values) {
  const std::int64_t count = pieces.shape[0], blocks = blocks_for(values.elements(), Wire::block * Wire::block);
  return {static_cast<unsigned>(count),
          static_cast<unsigned>(std::clamp<std::int64_t>(blocks_for(blocks, count), 1, 65535))};
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
  quantise_kernel<<<grid_of(pieces, values), threads, 0, raw(stream)>>>(values.elements(), bytes.elements(),
                                                                        pieces_in(pieces), data<const float>(values),
                                                                        data<unsigned char>(bytes), faults_.sink());
  ANANKE_CUDA_LAUNCHED("quantise");
}

void CudaWire::dequantise(Stream& stream, const TensorView& pieces, const TensorView& bytes, const TensorView& values) {
  const DType elements = elements_of(values);
  arguments::check_pieces("dequantise", pieces, values, bytes, elements);
  if (pieces.shape[0] == 0) return;
  with_elements(elements, [&](auto element) {
    using T = decltype(element);
    dequantise_kernel<<<grid_of(pieces, values), threads, 0, raw(stream)>>>(
        values.elements(), bytes.elements(), pieces_in(pieces), data<const unsigned char>(bytes), data<T>(values),
        faults_.sink());
    ANANKE_CUDA_LAUNCHED("dequantise");
  });
}

}  // namespace ananke::cuda
