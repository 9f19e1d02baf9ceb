// Where there was no cupti.h when this was built.
#include "plugins/backend_cuda/device_trace.h"

namespace ananke::cuda {

DeviceTrace::~DeviceTrace() = default;

void DeviceTrace::begin(Trace& trace) {
  trace.note(
      "no device activity: backend_cuda was built without cupti.h, which comes with the CUDA toolkit and as pip's "
      "nvidia-cuda-cupti; spans of the host alone");
}

void DeviceTrace::end() {}

}  // namespace ananke::cuda
