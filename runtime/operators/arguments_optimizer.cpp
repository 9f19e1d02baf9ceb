#include "runtime/operators/arguments.h"
#include "runtime/operators/validate.h"

namespace ananke::arguments {

std::int64_t check(const AdamWUpdate::Arguments& a, DType elements) {
  constexpr const char* op = "adamw";
  const std::int64_t n = a.weight.elements();
  expect(op, "weight", a.weight, elements, {n});
  expect(op, "gradient", a.gradient, elements, {n});
  expect(op, "exp_avg", a.exp_avg, elements, {n});
  expect(op, "exp_avg_sq", a.exp_avg_sq, elements, {n});
  expect(op, "scale", a.scale, {1});
  expect(op, "finite", a.finite, DType::i32, {1});
  ANANKE_CHECK(a.step >= 1, "adamw: steps count from 1");
  return n;
}

std::int64_t check(const Momentum::Accumulate& a) {
  constexpr const char* op = "momentum accumulate";
  const std::int64_t n = a.gradient.elements();
  expect(op, "gradient", a.gradient, {n});
  expect(op, "momentum", a.momentum, {n});
  expect(op, "out", a.out, {n});
  expect(op, "scale", a.scale, {1});
  expect(op, "finite", a.finite, DType::i32, {1});
  return n;
}

std::int64_t check(const Momentum::Apply& a) {
  constexpr const char* op = "momentum apply";
  const std::int64_t n = a.weight.elements();
  expect(op, "weight", a.weight, {n});
  expect(op, "direction", a.direction, {n});
  expect(op, "finite", a.finite, DType::i32, {1});
  return n;
}

NewtonSchulz::Sizes check(const NewtonSchulz::Arguments& a) {
  constexpr const char* op = "newton_schulz";
  expect_rank(op, "matrices", a.matrices, 3);
  const NewtonSchulz::Sizes n{a.matrices.shape[0], a.matrices.shape[1], a.matrices.shape[2]};
  expect(op, "matrices", a.matrices, {n.count, n.rows, n.columns});
  expect(op, "finite", a.finite, DType::i32, {1});
  ANANKE_CHECK(a.steps >= 0 && a.eps > 0, "newton_schulz: {} steps, eps {}", a.steps, a.eps);
  return n;
}

void check(const Wire::ToBf16& a) {
  constexpr const char* op = "to_bf16";
  expect_rank(op, "x", a.x, 2);
  expect_rank(op, "y", a.y, 2);
  expect(op, "x", a.x, a.x.shape);
  expect(op, "y", a.y, DType::bf16, {a.x.shape[0], a.y.shape[1]});
  ANANKE_CHECK(a.first >= 0 && a.first + a.y.shape[1] <= a.x.shape[1], "to_bf16: columns {} to {} of {}", a.first,
               a.first + a.y.shape[1], a.x.shape[1]);
}

void check_from_bf16(const TensorView& x, const TensorView& y) {
  expect("from_bf16", "x", x, DType::bf16, x.shape);
  expect("from_bf16", "y", y, x.shape);
}

void check(const Wire::LandingSum& a) {
  constexpr const char* op = "landing_sum";
  expect_rank(op, "landed", a.landed, 2);
  expect(op, "landed", a.landed, DType::bf16, {a.landed.shape[0], a.sum.elements()});
  expect(op, "sum", a.sum, {a.sum.elements()});
}

void check_pieces(const char* op, const TensorView& pieces, const TensorView& values, const TensorView& bytes,
                  DType elements) {
  expect_rank(op, "pieces", pieces, 2);
  expect(op, "pieces", pieces, DType::i64, {pieces.shape[0], Wire::fields});
  expect(op, "values", values, elements, {values.elements()});
  expect(op, "bytes", bytes, DType::u8, {bytes.elements()});
}

}  // namespace ananke::arguments
