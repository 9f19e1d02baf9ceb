// All operators of the host backend, in f32.
#pragma once

#include "plugins/backend_host/operators/adamw.h"
#include "plugins/backend_host/operators/add_rms_norm.h"
#include "plugins/backend_host/operators/attention.h"
#include "plugins/backend_host/operators/elementwise.h"
#include "plugins/backend_host/operators/embedding.h"
#include "plugins/backend_host/operators/exchange.h"
#include "plugins/backend_host/operators/grouped_mlp.h"
#include "plugins/backend_host/operators/head_loss.h"
#include "plugins/backend_host/operators/linear.h"
#include "plugins/backend_host/operators/momentum.h"
#include "plugins/backend_host/operators/newton_schulz.h"
#include "plugins/backend_host/operators/permute.h"
#include "plugins/backend_host/operators/router.h"
#include "plugins/backend_host/operators/router_balance.h"
#include "plugins/backend_host/operators/wire.h"
#include "runtime/operators/operator_set.h"

namespace ananke::host {

// The streams given to the operators must be HostStream. Work that was put on them uses the pool: streams end first,
// then these, then the pool. Results do not depend on the pool's number of threads, workspace sizes do.
class HostOperators {
 public:
  explicit HostOperators(ThreadPool& pool);  // Error(resource) when processor or OpenBLAS cannot be used (checks.h)
  HostOperators(const HostOperators&) = delete;
  HostOperators& operator=(const HostOperators&) = delete;
  const OperatorSet& set() const noexcept { return set_; }

 private:
  HostEmbedding embedding_;
  HostAddRmsNorm add_rms_norm_;
  HostLinear linear_;
  HostAttention attention_;
  HostRouter router_;
  HostRouterBalance router_balance_;
  HostPermute permute_;
  HostExchange exchange_;
  HostGroupedMlp grouped_mlp_;
  HostHeadLoss head_loss_;
  HostElementwise elementwise_;
  HostAdamW adamw_;
  HostMomentum momentum_;
  HostNewtonSchulz newton_schulz_;
  HostWire wire_;
  OperatorSet set_;
};

}  // namespace ananke::host
