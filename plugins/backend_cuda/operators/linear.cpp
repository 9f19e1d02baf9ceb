#include "plugins/backend_cuda/operators/linear.h"

#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/elements.h"
#include "runtime/operators/arguments.h"

namespace ananke::cuda {

void CudaLinear::forward(Stream& stream, const Forward& a) {
  const DType elements = elements_of(a.x);
  const arguments::LinearSizes n = arguments::check(a, elements);
  products_.run(raw(stream), {.m = n.tokens,
                              .n = n.out,
                              .k = n.in,
                              .a = {a.x.data, n.in},
                              .b = {a.weight.data, n.in, true},
                              .in = elements,
                              .out = a.y.data,
                              .out_stride = n.out,
                              .out_type = elements});
}

void CudaLinear::backward(Stream& stream, const Backward& a) {
  const DType elements = elements_of(a.x);
  const arguments::LinearSizes n = arguments::check(a, elements);
  const cudaStream_t on = raw(stream);
  if (a.dx) {
    products_.run(on, {.m = n.tokens,
                       .n = n.in,
                       .k = n.out,
                       .a = {a.dy.data, n.out},
                       .b = {a.weight.data, n.in},
                       .in = elements,
                       .out = a.dx.data,
                       .out_stride = n.in,
                       .out_type = elements,
                       .beta = a.add_dx ? 1.0f : 0.0f});
  }
  if (a.dweight) {
    products_.run(on, {.m = n.out,
                       .n = n.in,
                       .k = n.tokens,
                       .a = {a.dy.data, n.out, true},
                       .b = {a.x.data, n.in},
                       .in = elements,
                       .out = a.dweight.data,
                       .out_stride = n.in,
                       .out_type = DType::f32,
                       .beta = 1});
  }
}

}  // namespace ananke::cuda
