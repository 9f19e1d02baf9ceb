// What CUDA and NCCL read from the environment, and which libraries this process has.
#pragma once

#include <string>

namespace ananke::cuda {

// As the fields of BackendCuda (backend_cuda.proto).
struct LibrarySettings {
  bool eager_modules = true;
  bool nvlink_sharp = false;
  int all_to_all_ctas = 0;
  std::string network_interface;  // the site's; NCCL is told where it names an interface of this machine
};
// Sets, where the user has not, what both libraries read once, at their first call: CUDA_MODULE_LOADING,
// NCCL_LAUNCH_ORDER_IMPLICIT, NCCL_NVLS_ENABLE, NCCL_MAX_P2P_NCHANNELS, NCCL_SOCKET_IFNAME. The first settings of a
// process count.
void prepare_environment(const LibrarySettings& settings);

// Error(config) for CUDA_DEVICE_MAX_CONNECTIONS=1: all streams of a process then share one queue to the device, in which
// a collective that waits for a peer holds up what the peer waits for. And for NCCL_COMM_BLOCKING=1, which overrules that
// communicators are non-blocking: no deadline could end a call that waits for a peer.
void check_environment();

// `code` as ncclGetVersion gives it, `built` that of the header (NCCL_VERSION_CODE). Error(config) where the library is
// older than 2.26 or than the header; a remark where it is newer than those that were tried (2.28), else empty.
std::string judge_nccl(int code, int built);
std::string nccl_version_text(int code);  // "2.28.9"

}  // namespace ananke::cuda
