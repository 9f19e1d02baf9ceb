// Functions of cuBLASLt and NCCL, loaded when they are needed.
#pragma once

#include <cublasLt.h>
#include <nccl.h>

namespace ananke::gpu_checks {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) make_product;
  decltype(&cublasLtMatmulDescDestroy) drop_product;
  decltype(&cublasLtMatrixLayoutCreate) make_layout;
  decltype(&cublasLtMatrixLayoutDestroy) drop_layout;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) drop_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmul) multiply;
};

struct Nccl {
  decltype(&ncclGetUniqueId) unique_id;
  decltype(&ncclCommInitRankConfig) init;
  decltype(&ncclCommGetAsyncError) state;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclGetErrorString) error_text;
};

// Throw Error(resource) where the library, or a function of it, is not there.
CublasLt load_cublas();
Nccl load_nccl();

}  // namespace ananke::gpu_checks
