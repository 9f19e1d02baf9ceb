#include "runtime/operators/arguments.h"

#include "runtime/operators/validate.h"

namespace ananke::arguments {

EmbeddingSizes check(const Embedding::Forward& a, DType elements) {
  constexpr const char* op = "embedding forward";
  expect_rank(op, "table", a.table, 2);
  expect_rank(op, "tokens", a.tokens, 1);
  const EmbeddingSizes n{a.tokens.elements(), a.table.shape[0], a.table.shape[1]};
  expect(op, "tokens", a.tokens, DType::i32, {n.tokens});
  expect(op, "table", a.table, elements, {n.vocabulary, n.hidden});
  expect(op, "y", a.y, elements, {n.tokens, n.hidden});
  return n;
}

EmbeddingSizes check(const Embedding::Backward& a, DType elements) {
  constexpr const char* op = "embedding backward";
  expect_rank(op, "dtable", a.dtable, 2);
  expect_rank(op, "tokens", a.tokens, 1);
  const EmbeddingSizes n{a.tokens.elements(), a.dtable.shape[0], a.dtable.shape[1]};
  expect(op, "tokens", a.tokens, DType::i32, {n.tokens});
  expect(op, "dtable", a.dtable, {n.vocabulary, n.hidden});
  expect(op, "dy", a.dy, elements, {n.tokens, n.hidden});
  return n;
}

AddRmsNorm::Sizes check(const AddRmsNorm::Forward& a, DType elements) {
  constexpr const char* op = "add_rms_norm forward";
  expect_rank(op, "x", a.x, 2);
  const AddRmsNorm::Sizes n{a.x.shape[0], a.x.shape[1]};
  const Shape shape{n.rows, n.width};
  expect(op, "x", a.x, elements, shape);
  expect(op, "weight", a.weight, {n.width});
  expect(op, "y", a.y, elements, shape);
  if (expect_or_empty(op, "delta", a.delta, elements, shape)) {
    expect(op, "h", a.h, elements, shape);
  } else {
    expect_or_empty(op, "h", a.h, elements, shape);
  }
  return n;
}

AddRmsNorm::Sizes check(const AddRmsNorm::Backward& a, DType elements) {
  constexpr const char* op = "add_rms_norm backward";
  expect_rank(op, "h", a.h, 2);
  const AddRmsNorm::Sizes n{a.h.shape[0], a.h.shape[1]};
  const Shape shape{n.rows, n.width};
  expect(op, "h", a.h, elements, shape);
  expect(op, "weight", a.weight, {n.width});
  expect(op, "dy", a.dy, elements, shape);
  expect_or_empty(op, "dh_in", a.dh_in, elements, shape);
  expect(op, "dh", a.dh, elements, shape);
  expect(op, "dweight", a.dweight, {n.width});
  return n;
}

namespace {

LinearSizes sizes_of(const char* op, const TensorView& x, const TensorView& weight, DType elements) {
  expect_rank(op, "x", x, 2);
  expect_rank(op, "weight", weight, 2);
  const LinearSizes n{x.shape[0], x.shape[1], weight.shape[0]};
  expect(op, "x", x, elements, {n.tokens, n.in});
  expect(op, "weight", weight, elements, {n.out, n.in});
  return n;
}

}  // namespace

LinearSizes check(const Linear::Forward& a, DType elements) {
  constexpr const char* op = "linear forward";
  const LinearSizes n = sizes_of(op, a.x, a.weight, elements);
  expect(op, "y", a.y, elements, {n.tokens, n.out});
  return n;
}

LinearSizes check(const Linear::Backward& a, DType elements) {
  constexpr const char* op = "linear backward";
  const LinearSizes n = sizes_of(op, a.x, a.weight, elements);
  expect(op, "dy", a.dy, elements, {n.tokens, n.out});
  expect_or_empty(op, "dx", a.dx, elements, {n.tokens, n.in});
  expect_or_empty(op, "dweight", a.dweight, {n.out, n.in});
  return n;
}

namespace {

Attention::Sizes sizes_of(const char* op, const Attention::Inputs& in, DType elements) {
  expect_rank(op, "q", in.q, 3);
  expect_rank(op, "k", in.k, 3);
  expect_rank(op, "cosine", in.cosine, 2);
  const Attention::Sizes n{in.q.shape[0], in.q.shape[1],     in.k.shape[1],
                           in.q.shape[2], in.segments.count, in.segments.longest};
  expect(op, "q", in.q, elements, {n.tokens, n.query_heads, n.head_dim});
  expect(op, "k", in.k, elements, {n.tokens, n.key_heads, n.head_dim});
  expect(op, "v", in.v, elements, {n.tokens, n.key_heads, n.head_dim});
  ANANKE_CHECK(n.key_heads > 0 && n.query_heads % n.key_heads == 0,
               "{}: q {} has no whole number of heads for each of k {}", op, to_string(in.q.shape),
               to_string(in.k.shape));
  ANANKE_CHECK(n.head_dim > 0 && n.head_dim % 2 == 0, "{}: q {}: the head dimension must be even", op,
               to_string(in.q.shape));
  expect(op, "q_norm", in.q_norm, {n.head_dim});
  expect(op, "k_norm", in.k_norm, {n.head_dim});
  expect(op, "cosine", in.cosine, {in.cosine.shape[0], n.head_dim / 2});
  expect(op, "sine", in.sine, {in.cosine.shape[0], n.head_dim / 2});
  expect(op, "positions", in.positions, DType::i32, {n.tokens});
  expect(op, "segments.offsets", in.segments.offsets, DType::i32, {n.segments + 1});
  ANANKE_CHECK(n.longest >= 0 && (n.tokens == 0) == (n.segments == 0), "{}: {} segments of at most {} tokens for q {}",
               op, n.segments, n.longest, to_string(in.q.shape));
  return n;
}

}  // namespace

Attention::Sizes check(const Attention::Forward& a, DType elements) {
  constexpr const char* op = "attention forward";
  const Attention::Sizes n = sizes_of(op, a.in, elements);
  expect(op, "o", a.o, elements, {n.tokens, n.query_heads, n.head_dim});
  return n;
}

Attention::Sizes check(const Attention::Backward& a, DType elements) {
  constexpr const char* op = "attention backward";
  const Attention::Sizes n = sizes_of(op, a.in, elements);
  const Shape queries{n.tokens, n.query_heads, n.head_dim}, keys{n.tokens, n.key_heads, n.head_dim};
  expect(op, "o", a.o, elements, queries);
  expect(op, "d_o", a.d_o, elements, queries);
  expect(op, "dq", a.dq, elements, queries);
  expect(op, "dk", a.dk, elements, keys);
  expect(op, "dv", a.dv, elements, keys);
  expect(op, "dq_norm", a.dq_norm, {n.head_dim});
  expect(op, "dk_norm", a.dk_norm, {n.head_dim});
  return n;
}

namespace {

HeadLoss::Sizes sizes_of(const char* op, const TensorView& x, const TensorView& weight, const TensorView& targets,
                         const TensorView& loss, const TensorView& logits, DType elements) {
  expect_rank(op, "x", x, 2);
  expect_rank(op, "weight", weight, 2);
  const HeadLoss::Sizes n{x.shape[0], x.shape[1], weight.shape[0]};
  expect(op, "x", x, elements, {n.tokens, n.hidden});
  expect(op, "weight", weight, elements, {n.vocabulary, n.hidden});
  expect(op, "targets", targets, DType::i32, {n.tokens});
  expect(op, "loss", loss, DType::f64, {1});
  expect_or_empty(op, "logits", logits, {n.tokens, n.vocabulary});
  return n;
}

}  // namespace

HeadLoss::Sizes check(const HeadLoss::Forward& a, DType elements) {
  return sizes_of("head_loss forward", a.x, a.weight, a.targets, a.loss, a.logits, elements);
}

HeadLoss::Sizes check(const HeadLoss::ForwardBackward& a, DType elements) {
  constexpr const char* op = "head_loss forward_backward";
  const HeadLoss::Sizes n = sizes_of(op, a.x, a.weight, a.targets, a.loss, a.logits, elements);
  expect(op, "scale", a.scale, {1});
  expect(op, "dx", a.dx, elements, {n.tokens, n.hidden});
  expect(op, "dweight", a.dweight, {n.vocabulary, n.hidden});
  return n;
}

void check_add(const TensorView& a, const TensorView& b, const TensorView& y, DType elements, DType added) {
  expect("add", "a", a, elements, a.shape);
  expect("add", "b", b, added, a.shape);
  expect("add", "y", y, elements, a.shape);
}

void check_square_sum(const TensorView& x, const TensorView& sum, DType elements) {
  expect("square_sum", "x", x, elements, x.shape);
  expect("square_sum", "sum", sum, DType::f64, {1});
}

void check_add_in_order(const TensorView& terms, const TensorView& sum) {
  expect("add_in_order", "terms", terms, DType::f64, terms.shape);
  expect("add_in_order", "sum", sum, DType::f64, {1});
}

void check_reciprocal(const TensorView& x, const TensorView& y) {
  expect("reciprocal", "x", x, DType::f64, {1});
  expect("reciprocal", "y", y, {1});
}

void check_hash(const TensorView& x, const TensorView& hash, DType elements) {
  expect("hash", "x", x, elements, x.shape);
  expect("hash", "hash", hash, DType::i64, {2});
}

void check(const Elementwise::Clip& a) {
  constexpr const char* op = "clip";
  expect(op, "square_sum", a.square_sum, DType::f64, {1});
  expect(op, "loss", a.loss, DType::f64, {1});
  expect(op, "scale", a.scale, {1});
  expect(op, "finite", a.finite, DType::i32, {1});
}

}  // namespace ananke::arguments
