#include "plugins/gpu_checks/libraries.h"

#include <dlfcn.h>

#include <string>

#include "runtime/base/error.h"

namespace ananke::gpu_checks {
namespace {

// Never unloaded: the process is a short one.
void* open_library(const char* name, const char* file) {
  for (const char* one : {name, file}) {
    if (void* library = dlopen(one, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  const char* reason = dlerror();
  fail(ErrorKind::resource, "{} cannot be loaded: {}; see LD_LIBRARY_PATH", name, reason ? reason : "no reason given");
}

template <class Function>
void take(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) fail(ErrorKind::resource, "the library has no {}; load a newer one", name);
}

}  // namespace

CublasLt load_cublas() {
  void* library = open_library(ANANKE_CUBLASLT_NAME, ANANKE_CUBLASLT_FILE);
  CublasLt api{};
  take(library, "cublasLtCreate", api.create);
  take(library, "cublasLtDestroy", api.destroy);
  take(library, "cublasLtMatmulDescCreate", api.make_product);
  take(library, "cublasLtMatmulDescDestroy", api.drop_product);
  take(library, "cublasLtMatrixLayoutCreate", api.make_layout);
  take(library, "cublasLtMatrixLayoutDestroy", api.drop_layout);
  take(library, "cublasLtMatmulPreferenceCreate", api.make_preference);
  take(library, "cublasLtMatmulPreferenceDestroy", api.drop_preference);
  take(library, "cublasLtMatmulPreferenceSetAttribute", api.set_preference);
  take(library, "cublasLtMatmulAlgoGetHeuristic", api.choose);
  take(library, "cublasLtMatmul", api.multiply);
  return api;
}

Nccl load_nccl() {
  void* library = open_library("libnccl.so.2", ANANKE_NCCL_FILE);
  Nccl api{};
  take(library, "ncclGetUniqueId", api.unique_id);
  take(library, "ncclCommInitRankConfig", api.init);
  take(library, "ncclCommGetAsyncError", api.state);
  take(library, "ncclCommAbort", api.abort);
  take(library, "ncclAllGather", api.all_gather);
  take(library, "ncclGroupStart", api.group_start);
  take(library, "ncclGroupEnd", api.group_end);
  take(library, "ncclGetErrorString", api.error_text);
  return api;
}

}  // namespace ananke::gpu_checks
