#include "plugins/backend_host/process_identity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <random>

#include "runtime/base/process.h"

namespace ananke {

const std::string& process_identity() {
  static const std::string identity = [] {
    std::random_device draw;
    return fmt::format("{}/{}/{:08x}{:08x}", host_name(), getpid(), draw(), draw());
  }();
  return identity;
}

}  // namespace ananke
