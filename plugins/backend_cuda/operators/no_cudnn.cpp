// In place of cudnn_attention.cpp where the headers were not found.
#include "plugins/backend_cuda/operators/cudnn_attention.h"

namespace ananke::cuda {

std::unique_ptr<CudnnAttention> CudnnAttention::open(std::string& reason, bool) {
  reason = "this backend_cuda was built without cuDNN's headers (cudnn.h 9.6 or newer and cudnn_frontend.h)";
  return nullptr;
}

}  // namespace ananke::cuda
