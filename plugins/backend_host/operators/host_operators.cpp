#include "plugins/backend_host/operators/host_operators.h"

#include "plugins/backend_host/operators/checks.h"

namespace ananke::host {

HostOperators::HostOperators(ThreadPool& pool)
    : embedding_(pool),
      add_rms_norm_(pool),
      linear_(pool),
      attention_(pool),
      router_(pool),
      permute_(pool),
      exchange_(pool),
      grouped_mlp_(pool),
      head_loss_(pool),
      elementwise_(pool),
      adamw_(pool),
      momentum_(pool),
      newton_schulz_(pool),
      wire_(pool),
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
           .wire = &wire_} {
  check_cpu();
  check_blas();
}

}  // namespace ananke::host
