#include "runtime/device/stream.h"

#include "runtime/base/error.h"

namespace ananke {

const char* name_of(Resource resource) noexcept {
  switch (resource) {
    case Resource::compute: return "compute";
    case Resource::network: return "network";
    case Resource::nvlink: return "nvlink";
    case Resource::host_to_device: return "host_to_device";
    case Resource::device_to_host: return "device_to_host";
  }
  return "unknown";
}

void Stream::run_on_host(std::function<void()>) {
  fail(ErrorKind::config,
       "this job's backend cannot run a plugin's host work on device tensors; use backend_host, or a plugin with "
       "kernels "
       "for this device");
}

}  // namespace ananke
