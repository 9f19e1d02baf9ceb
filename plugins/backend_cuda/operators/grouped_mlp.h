#pragma once

#include "plugins/backend_cuda/operators/offset_reader.h"
#include "plugins/backend_cuda/operators/products.h"
#include "plugins/backend_cuda/operators/side_streams.h"
#include "plugins/backend_cuda/sm90/grouped_products.h"
#include "runtime/operators/grouped_mlp.h"

namespace ananke::cuda {

// Whose products: those of sm90/ wherever they take a call's matrices, or cuBLASLt's.
enum class GroupedKernels { sm90, cublaslt };

// Kernels of sm90/ take bf16 matrices with sizes and strides that are multiples of 8, and in the backward pass those
// whose up lies right behind their gate: all groups at once, offsets stay on the device, and the activation and its
// gradient are made in the products' kernels. The rest are products of
// cuBLASLt, group by group, so a call whose caller does not know the offsets reads them on the host: the one exception
// to the rule that operators read nothing there (offset_reader.h counts it). Several groups at a time on streams beside
// the caller's. Where up's matrices lie right behind gate's, both are one product. Keeps what gate and up give.
// Activations and weights f32 or bf16, gradients of weights f32.
class CudaGroupedMlp final : public GroupedMlp {
 public:
  // `widest`: the largest type of activations that `saved` and `workspace` make room for.
  CudaGroupedMlp(const DeviceFacts& facts, Products& products, OffsetReader& offsets,
                 sm90::GroupedProducts& grouped_products, DType widest, GroupedKernels kernels)
      : products_(products),
        offsets_(offsets),
        grouped_products_(grouped_products),
        widest_(widest),
        kernels_(kernels),
        sides_(facts) {}
  std::size_t saved(const Sizes& s) const override;
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  Products& products_;
  OffsetReader& offsets_;
  sm90::GroupedProducts& grouped_products_;
  const DType widest_;
  const GroupedKernels kernels_;
  SideStreams sides_;
};

}  // namespace ananke::cuda
