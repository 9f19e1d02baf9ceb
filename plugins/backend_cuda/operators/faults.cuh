#pragma once

#include <cuda_runtime.h>

#include "plugins/backend_cuda/operators/faults.h"

namespace ananke::cuda {

__device__ inline void report(const FaultSink& sink, Fault fault, long long a = 0, long long b = 0, long long c = 0,
                              long long d = 0, long long e = 0) {
  if (atomicCAS(sink.taken, 0, 1) != 0) return;
  volatile FaultRecord* record = sink.record;
  record->values[0] = a;
  record->values[1] = b;
  record->values[2] = c;
  record->values[3] = d;
  record->values[4] = e;
  __threadfence_system();
  record->fault = static_cast<int>(fault);
}

}  // namespace ananke::cuda
