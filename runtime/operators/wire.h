#pragma once

#include "runtime/operators/operator.h"

namespace ananke {

// What parameters and gradients are while they travel: fewer bytes for one rounding. Masters and sums stay f32.
//
// bf16: rounded to nearest, ties to even. NaN stays NaN.
//
// fp8: OCP e4m3 (4 exponent bits, 3 mantissa bits, largest 448, no infinity) with one scale per block of 128 x 128
// elements of a matrix. The scale is a power of two, kept as its exponent + 127 (OCP e8m0): the smallest that brings
// the block's largest finite magnitude to 448 or less, 1 for a block of zeros. A code is x / scale rounded to nearest,
// ties to even; code x scale is exact in bf16. What is not finite becomes NaN, and the others of its block stay.
class Wire {
 public:
  // A piece of a row-major matrix, elements [begin, begin + count), in a flat f32 array and in a flat byte array, as
  // one row of a table on the device: i64 [pieces, 6]. Blocks that reach over an end of the piece have the scale of the
  // part inside. The piece's scales are those of all blocks of the block rows that it touches, in row-major order.
  struct BlockPiece {
    std::int64_t columns;        // of the matrix
    std::int64_t begin, count;   // elements of the matrix
    std::int64_t values;         // index of the first element in the f32 array
    std::int64_t codes, scales;  // index of the first code and the first scale in the byte array
  };
  static constexpr std::int64_t block = 128;
  static constexpr std::int64_t fields = sizeof(BlockPiece) / sizeof(std::int64_t);
  static std::int64_t scales_of(const BlockPiece& piece) {
    if (piece.count == 0) return 0;
    const std::int64_t rows = block * piece.columns;
    return ((piece.begin + piece.count - 1) / rows - piece.begin / rows + 1) * ((piece.columns + block - 1) / block);
  }

  // y[p][i] = bf16 of x[p][first + i]: the same columns of every rank's row, to be sent in one chunk.
  struct ToBf16 {
    TensorView x;        // f32 [P, n]
    std::int64_t first;  // column
    TensorView y;        // bf16 [P, m], first + m <= n
  };
  struct LandingSum {
    TensorView landed;  // bf16 [P, n]: what came from P ranks, in rank order
    TensorView sum;     // f32 [n]
    bool add;           // to what is in `sum`, after the ranks' terms are summed; else replace it
  };

  virtual ~Wire() = default;
  virtual void to_bf16(Stream& stream, const ToBf16& a) = 0;
  virtual void from_bf16(Stream& stream, const TensorView& x, const TensorView& y) = 0;  // bf16 [n] -> f32 [n]
  // sum = landed[0] + landed[1] + ..., in this order in f32, whatever P and n: the same bits however it is cut.
  virtual void landing_sum(Stream& stream, const LandingSum& a) = 0;
  // pieces: i64 [pieces, 6]; values: f32 [n]; bytes: u8 [m], codes and scales. Pieces do not overlap.
  virtual void quantise(Stream& stream, const TensorView& pieces, const TensorView& values,
                        const TensorView& bytes) = 0;
  // Likewise; values may be bf16 as well.
  virtual void dequantise(Stream& stream, const TensorView& pieces, const TensorView& bytes,
                          const TensorView& values) = 0;
};

}  // namespace ananke
