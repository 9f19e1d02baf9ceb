#include "plugins/backend_cuda/environment.h"

#include <net/if.h>

#include <cstdlib>
#include <mutex>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace ananke::cuda {
namespace {

constexpr int oldest = 22600, newest_tried = 22899;

void set_default(const char* name, const std::string& value) {
  const char* before = std::getenv(name);
  if (!before) {
    setenv(name, value.c_str(), 0);
  } else if (before != value) {
    log_info("{}={} from the environment is kept; backend_cuda would set {}", name, before, value);
  }
}

bool is_one(const char* name) {
  const char* value = std::getenv(name);
  return value && std::string_view(value) == "1";
}

}  // namespace

void prepare_environment(const LibrarySettings& settings) {
  static std::once_flag once;
  std::call_once(once, [&] {
    // A kernel that is loaded at its first launch may wait for the whole device, collectives included.
    set_default("CUDA_MODULE_LOADING", settings.eager_modules ? "EAGER" : "LAZY");
    // Communicators of different streams start on all ranks in the order in which the host calls them.
    set_default("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
    if (!settings.nvlink_sharp) set_default("NCCL_NVLS_ENABLE", "0");
    if (!settings.network_interface.empty() && if_nametoindex(settings.network_interface.c_str()) != 0) {
      set_default("NCCL_SOCKET_IFNAME", "=" + settings.network_interface);  // that one, not what begins with its name
    }
    if (settings.all_to_all_ctas > 0) set_default("NCCL_MAX_P2P_NCHANNELS", std::to_string(settings.all_to_all_ctas));
  });
}

void check_environment() {
  if (is_one("CUDA_DEVICE_MAX_CONNECTIONS")) {
    fail(ErrorKind::config,
         "CUDA_DEVICE_MAX_CONNECTIONS is 1: collectives and the kernels that they run beside would share one queue to "
         "the device and wait for each other without end; unset it (some sites set it for other frameworks), or set 8");
  }
  if (is_one("NCCL_COMM_BLOCKING")) {
    fail(ErrorKind::config,
         "NCCL_COMM_BLOCKING is 1: calls into NCCL would wait for peers, also for those that are gone, and no deadline "
         "could end them; unset it");
  }
}

std::string nccl_version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code % 10000 / 100, code % 100);
}

std::string judge_nccl(int code, int built) {
  const std::string version = nccl_version_text(code);
  if (code < oldest) {
    fail(ErrorKind::config,
         "backend_cuda needs NCCL 2.26 or newer, the libnccl.so.2 that this process found is {}; install another one, "
         "or "
         "set LD_LIBRARY_PATH so that it is found first",
         version);
  }
  if (code / 100 < built / 100) {
    fail(ErrorKind::config,
         "backend_cuda was built with NCCL {}, the libnccl.so.2 that this process found is {}, which is older; set "
         "LD_LIBRARY_PATH so that the newer one is found first, or build with the older one's nccl.h",
         nccl_version_text(built), version);
  }
  if (code <= newest_tried) return "";
  return fmt::format("NCCL {} is newer than those that backend_cuda was tried with (2.26 to 2.28)", version);
}

}  // namespace ananke::cuda
