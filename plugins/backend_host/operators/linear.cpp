#include "plugins/backend_host/operators/linear.h"

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/gemm.h"
#include "runtime/operators/arguments.h"

namespace ananke::host {
void HostLinear::forward(Stream& stream, const Forward& a) {
  const arguments::LinearSizes n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    gemm(pool, n.tokens, n.out, n.in, 1, {a.x.as<float>(), n.in}, {a.weight.as<float>(), n.in, true}, 0,
         a.y.as<float>(), n.out);
  });
}

void HostLinear::backward(Stream& stream, const Backward& a) {
  const arguments::LinearSizes n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    const float* dy = a.dy.as<float>();
    if (a.dx) {
      gemm(pool, n.tokens, n.in, n.out, 1, {dy, n.out}, {a.weight.as<float>(), n.in}, a.add_dx ? 1 : 0,
           a.dx.as<float>(), n.in);
    }
    if (a.dweight) {
      gemm(pool, n.out, n.in, n.tokens, 1, {dy, n.out, true}, {a.x.as<float>(), n.in}, 1, a.dweight.as<float>(), n.in);
    }
  });
}

}  // namespace ananke::host
