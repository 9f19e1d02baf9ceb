#include "plugins/backend_host/operators/linear.h"

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/gemm.h"
#include "plugins/backend_host/operators/validate.h"

namespace ananke::host {
namespace {

struct Sizes {
  std::int64_t tokens, in, out;
};

Sizes sizes_of(const char* op, const TensorView& x, const TensorView& weight) {
  expect_rank(op, "x", x, 2);
  expect_rank(op, "weight", weight, 2);
  const Sizes n{x.shape[0], x.shape[1], weight.shape[0]};
  expect(op, "x", x, {n.tokens, n.in});
  expect(op, "weight", weight, {n.out, n.in});
  return n;
}

}  // namespace

void HostLinear::forward(Stream& stream, const Forward& a) {
  const Sizes n = sizes_of("linear forward", a.x, a.weight);
  expect("linear forward", "y", a.y, {n.tokens, n.out});
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    gemm(pool, n.tokens, n.out, n.in, 1, {a.x.as<float>(), n.in}, {a.weight.as<float>(), n.in, true}, 0,
         a.y.as<float>(), n.out);
  });
}

void HostLinear::backward(Stream& stream, const Backward& a) {
  constexpr const char* op = "linear backward";
  const Sizes n = sizes_of(op, a.x, a.weight);
  expect(op, "dy", a.dy, {n.tokens, n.out});
  const bool want_dx = expect_or_empty(op, "dx", a.dx, {n.tokens, n.in});
  const bool want_dweight = expect_or_empty(op, "dweight", a.dweight, {n.out, n.in});
  HostStream::of(stream).enqueue([&pool = pool_, n, a, want_dx, want_dweight] {
    const float* dy = a.dy.as<float>();
    if (want_dx) {
      gemm(pool, n.tokens, n.in, n.out, 1, {dy, n.out}, {a.weight.as<float>(), n.in}, a.add_dx ? 1 : 0,
           a.dx.as<float>(), n.in);
    }
    if (want_dweight) {
      gemm(pool, n.out, n.in, n.tokens, 1, {dy, n.out, true}, {a.x.as<float>(), n.in}, 1, a.dweight.as<float>(), n.in);
    }
  });
}

}  // namespace ananke::host
