// All operators of the CUDA backend.
#pragma once

#include "plugins/backend_cuda/operators/adamw.h"
#include "plugins/backend_cuda/operators/add_rms_norm.h"
#include "plugins/backend_cuda/operators/attention.h"
#include "plugins/backend_cuda/operators/elementwise.h"
#include "plugins/backend_cuda/operators/embedding.h"
#include "plugins/backend_cuda/operators/exchange.h"
#include "plugins/backend_cuda/operators/grouped_mlp.h"
#include "plugins/backend_cuda/operators/head_loss.h"
#include "plugins/backend_cuda/operators/linear.h"
#include "plugins/backend_cuda/operators/momentum.h"
#include "plugins/backend_cuda/operators/newton_schulz.h"
#include "plugins/backend_cuda/operators/permute.h"
#include "plugins/backend_cuda/operators/router.h"
#include "plugins/backend_cuda/operators/router_balance.h"
#include "plugins/backend_cuda/operators/wire.h"
#include "runtime/operators/operator_set.h"

namespace ananke::cuda {

// The streams given to the operators must be CudaStream of the same device. Work that was put on them uses this
// object's memory: streams end first. Products may be put on two streams, and this object's own, other operators with
// memory of their own on four.
class CudaOperators {
 public:
  // On the current device, which is `facts`'; without CUDA, for sizes only, where `facts` are those expected. Takes 128
  // MiB and a little of `memory`, and a few KiB of `pinned` host memory that the device can write. `widest`: the
  // largest type of activations that `saved` and `workspace` make room for; calls with wider ones are refused where it
  // matters. `deterministic`: all give the same bits in every run; without it, all but attention by cuDNN do.
  CudaOperators(const DeviceFacts& facts, Arena& memory, Arena& pinned, DType widest = DType::f32,
                AttentionChoice attention = AttentionChoice::own, bool deterministic = false,
                GroupedKernels grouped = GroupedKernels::sm90);
  CudaOperators(const CudaOperators&) = delete;
  CudaOperators& operator=(const CudaOperators&) = delete;
  const OperatorSet& set() const noexcept { return set_; }
  // Throws what kernels found wrong in their data (faults.h): to be called when a stream's work is done. Thread-safe.
  void check() const { faults_.check(); }
  std::string attention_kernels() const { return attention_.kernels(); }
  // How often operators waited for the stream to see a number that lies on the device.
  std::uint64_t reads() const noexcept { return offsets_.reads(); }

 private:
  const DeviceFacts facts_;
  Faults faults_;
  Products products_;
  OffsetReader offsets_;
  sm90::GroupedProducts grouped_products_;
  CudaEmbedding embedding_;
  CudaAddRmsNorm add_rms_norm_;
  CudaLinear linear_;
  CudaAttention attention_;
  CudaRouter router_;
  CudaRouterBalance router_balance_;
  CudaPermute permute_;
  CudaExchange exchange_;
  CudaGroupedMlp grouped_mlp_;
  CudaHeadLoss head_loss_;
  CudaElementwise elementwise_;
  CudaAdamW adamw_;
  CudaMomentum momentum_;
  CudaNewtonSchulz newton_schulz_;
  CudaWire wire_;
  OperatorSet set_;
};

}  // namespace ananke::cuda
