// What the device runs while a step is traced, told to its trace: kernels, copies and fills on their streams, by
// CUPTI's activity records. Each names the operator or collective during whose call it was launched: CUPTI's times are
// of the trace's own clock.
//
// CUPTI knows one client a process: of ranks that are threads of one, one at a time is traced so. Where it is missing
// or refuses, the trace says so and has the host's spans alone.
#pragma once

#include "plugins/backend_cuda/cuda_device.h"
#include "runtime/telemetry/trace.h"

namespace ananke::cuda {

class DeviceTrace {
 public:
  explicit DeviceTrace(CudaDevice& device) : device_(device) {}
  ~DeviceTrace();
  DeviceTrace(const DeviceTrace&) = delete;
  DeviceTrace& operator=(const DeviceTrace&) = delete;

  // The streams stand still. `trace` lives until end(). The first call of a process loads CUPTI, which takes a while.
  void begin(Trace& trace);
  // Streams stand still again, unless the step has failed; no activity is recorded any more.
  void end();

 private:
  CudaDevice& device_;
  Trace* trace_ = nullptr;  // null: nothing is recorded
};

}  // namespace ananke::cuda
