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
      grouped_mlp_(pool),
      head_loss_(pool),
      elementwise_(pool),
      adamw_(pool),
      momentum_(pool),
      newton_schulz_(pool),
      set_{&embedding_,   &add_rms_norm_, &linear_,      &attention_, &router_,   &permute_,
           &grouped_mlp_, &head_loss_,    &elementwise_, &adamw_,     &momentum_, &newton_schulz_} {
  check_cpu();
  check_blas();
}

}  // namespace ananke::host
