#include "runtime/device/stream.h"

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

}  // namespace ananke
