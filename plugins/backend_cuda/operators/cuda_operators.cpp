#include "plugins/backend_cuda/operators/cuda_operators.h"

namespace ananke::cuda {

CudaOperators::CudaOperators(const DeviceFacts& facts, Arena& memory, Arena& pinned, DType widest,
                             AttentionChoice attention, bool deterministic, GroupedKernels grouped)
    : facts_(facts),
      faults_(memory, pinned),
      products_(facts_, memory),
      offsets_(pinned),
      grouped_products_(facts_, faults_, memory),
      embedding_(faults_),
      linear_(products_),
      attention_(facts_, faults_, widest, attention, deterministic),
      router_(facts_, faults_, products_),
      permute_(facts_, faults_),
      exchange_(facts_, faults_),
      grouped_mlp_(facts_, products_, offsets_, grouped_products_, widest, grouped),
      head_loss_(faults_, products_),
      elementwise_(memory),
      newton_schulz_(facts_, products_, grouped),
      wire_(faults_),
      set_{.embedding = &embedding_,
           .add_rms_norm = &add_rms_norm_,
           .linear = &linear_,
           .attention = &attention_,
           .router = &router_,
           .router_balance = &router_balance_,
           .permute = &permute_,
           .exchange = &exchange_,
           .grouped_mlp = &grouped_mlp_,
           .head_loss = &head_loss_,
           .elementwise = &elementwise_,
           .adamw = &adamw_,
           .momentum = &momentum_,
           .newton_schulz = &newton_schulz_,
           .wire = &wire_} {}

}  // namespace ananke::cuda
