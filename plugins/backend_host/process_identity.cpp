#include "plugins/backend_host/process_identity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <random>

namespace ananke {

const std::string& process_identity() {
  static const std::string identity = [] {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    std::random_device draw;
    return fmt::format("{}/{}/{:08x}{:08x}", host, getpid(), draw(), draw());
  }();
  return identity;
}

}  // namespace ananke
