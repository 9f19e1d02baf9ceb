#include <algorithm>
#include <cstdint>
#include <exception>

#include "plugins/backend_cuda/cuda_stream.h"
#include "plugins/backend_cuda/operators/attention.h"
#include "plugins/backend_cuda/operators/attention_parts.h"
#include "plugins/backend_cuda/operators/elements.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/units.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/validate.h"

namespace ananke::cuda {
namespace {

using Sizes = Attention::Sizes;

constexpr std::size_t alignment = 16;  // of what cuDNN reads

std::size_t scratch_bytes(const Sizes& n, DType elements) {
  Carve carve;
  layout_scratch(carve, n, elements);
  return carve.used();
}

bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % alignment == 0; }

// One call, and where cuDNN's part of its scratch memory is.
struct Prepared {
  AttentionCall call;
  Carve rest;

  Prepared(Stream& stream, const Sizes& n, const Region& saved, const Region& workspace, DType elements,
           const Faults& faults)
      : rest(workspace) {
    Carve saved_carve(saved);
    call = {raw(stream), n, layout_saved(saved_carve, n), layout_scratch(rest, n, elements), elements, faults.sink()};
  }
};

}  // namespace

CudaAttention::CudaAttention(const DeviceFacts& facts, const Faults& faults, DType widest, AttentionChoice choice,
                             bool deterministic)
    : faults_(faults), widest_(widest), choice_(choice), deterministic_(deterministic) {
  constexpr std::size_t needed = 172 << 10;  // the backward pass of 128 elements a head
  if (facts.shared_per_block_most < needed) {
    fail(ErrorKind::config,
         "{} gives a block {} bytes of shared memory, but attention needs {}: use a device of "
         "compute capability 9.0",
         facts.name, facts.shared_per_block_most, needed);
  }
  if (choice == AttentionChoice::cudnn && widest != DType::bf16) {
    fail(ErrorKind::config,
         "attention: CUDNN asks for cuDNN's kernels, which take bf16, but activations are {}; set "
         "attention: AUTO",
         name_of(widest));
  }
  if (facts.device < 0) return;
  allow_shared_memory_forward();
  allow_shared_memory_backward();
  open_cudnn(facts);
}

void CudaAttention::open_cudnn(const DeviceFacts& facts) {
  if (choice_ == AttentionChoice::own || widest_ != DType::bf16) return;
  std::string reason;
  cudnn_ = CudnnAttention::open(reason, deterministic_);
  if (cudnn_) {
    log_info("attention on {}: cuDNN {}", facts.name, cudnn_->version());
  } else if (choice_ == AttentionChoice::cudnn) {
    fail(ErrorKind::config, "attention: CUDNN asks for cuDNN's kernels, but {}; or set attention: AUTO", reason);
  } else {
    log_warning("attention on {}: the backend's own kernels, which are slow: {}", facts.name, reason);
  }
}

std::string CudaAttention::kernels() const {
  return cudnn_ && !refused_ ? "cuDNN " + cudnn_->version() : "the backend's own kernels";
}

// Also where there is no library, so that the memory that is planned is the same everywhere.
bool CudaAttention::has_room_for_cudnn(const Sizes& n) const {
  return choice_ != AttentionChoice::own && widest_ == DType::bf16 && n.tokens > 0 && n.query_heads > 0 &&
         n.segments > 0;
}

// By the sizes alone: a job is refused where it is checked, not where it first meets cuDNN.
void CudaAttention::refuse_many_pairs(const Sizes& n) const {
  const std::int64_t bytes = CudnnAttention::pair_bytes(n, 1);
  if (!deterministic_ || bytes <= CudnnAttention::most_pair_bytes) return;
  fail(ErrorKind::config,
       "training.deterministic: cuDNN's deterministic backward pass of attention needs memory that grows with the "
       "square of a document's length, {} for {} heads and documents of up to {} tokens, of {} that it may take; "
       "shorten training.sequence_length, set attention: OWN for the backend's own kernels, which are slow, or remove "
       "training.deterministic",
       format_bytes(static_cast<std::uint64_t>(bytes)), n.query_heads, n.longest,
       format_bytes(static_cast<std::uint64_t>(CudnnAttention::most_pair_bytes)));
}

void CudaAttention::plan_cudnn(const Sizes& n) const {
  if (!cudnn_ || refused_ || !has_room_for_cudnn(n)) return;
  try {
    cudnn_->planned(n);
  } catch (const std::exception& error) {
    if (choice_ == AttentionChoice::cudnn) throw;
    refused_ = true;
    log_warning("attention: the backend's own kernels, which are slow: {}", error.what());
  }
}

bool CudaAttention::by_cudnn(const Sizes& n, DType elements, std::initializer_list<const void*> data) const {
  return cudnn_ && !refused_ && elements == DType::bf16 && cudnn_->takes(n) &&
         std::all_of(data.begin(), data.end(), aligned);
}

std::size_t CudaAttention::saved(const Sizes& s) const {
  Carve carve;
  layout_saved(carve, s);
  return carve.used();
}

std::size_t CudaAttention::workspace(const Sizes& s) const {
  if (has_room_for_cudnn(s)) refuse_many_pairs(s);
  plan_cudnn(s);
  Carve carve;
  layout_scratch(carve, s, widest_);
  if (has_room_for_cudnn(s)) {
    CudnnAttention::layout(carve, cudnn_ && !refused_ ? cudnn_->planned(s) : s, deterministic_);
  }
  return carve.used();
}

void CudaAttention::check_call(const char* op, const Sizes& n, DType elements, bool cudnn, const Region& saved_memory,
                               const Region& scratch) const {
  ANANKE_CHECK(n.head_dim <= most_head_dim, "{}: heads of {} elements, but the CUDA backend takes at most {}", op,
               n.head_dim, most_head_dim);
  expect_region(op, "saved", saved_memory, saved(n));
  expect_region(op, "workspace", scratch, cudnn ? workspace(n) : scratch_bytes(n, elements));
}

RaggedCall CudaAttention::ragged_call(const AttentionCall& call, const Inputs& in, Carve& rest) const {
  const Sizes planned = cudnn_->planned(call.n);
  return {call.stream, call.n, static_cast<const std::int32_t*>(in.segments.offsets.data),
          call.scratch.first_tile + call.n.segments, CudnnAttention::layout(rest, planned, deterministic_)};
}

void CudaAttention::forward(Stream& stream, const Forward& a) {
  const DType elements = elements_of(a.in.q);
  const Sizes n = arguments::check(a, elements);
  const bool cudnn = by_cudnn(n, elements, {a.in.v.data, a.o.data});
  check_call("attention forward", n, elements, cudnn, a.saved, a.workspace);
  if (n.tokens == 0 || n.query_heads == 0) return;
  Prepared prepared(stream, n, a.saved, a.workspace, elements, faults_);
  const AttentionCall& call = prepared.call;
  prepare(call, a.in, true);
  if (!cudnn) return attend(call, a);
  cudnn_->forward(
      ragged_call(call, a.in, prepared.rest),
      {.q = call.scratch.q, .k = call.scratch.k, .v = a.in.v.data, .o = a.o.data, .log_sum = call.saved.log_sum});
}

void CudaAttention::backward(Stream& stream, const Backward& a) {
  const DType elements = elements_of(a.in.q);
  const Sizes n = arguments::check(a, elements);
  const bool cudnn = by_cudnn(n, elements, {a.in.v.data, a.o.data, a.d_o.data, a.dq.data, a.dk.data, a.dv.data});
  check_call("attention backward", n, elements, cudnn, a.saved, a.workspace);
  if (n.tokens == 0 || n.query_heads == 0) return;
  Prepared prepared(stream, n, a.saved, a.workspace, elements, faults_);
  const AttentionCall& call = prepared.call;
  prepare(call, a.in, false);
  if (cudnn) {
    cudnn_->backward(ragged_call(call, a.in, prepared.rest), {.q = call.scratch.q,
                                                              .k = call.scratch.k,
                                                              .v = a.in.v.data,
                                                              .o = a.o.data,
                                                              .log_sum = call.saved.log_sum,
                                                              .d_o = a.d_o.data,
                                                              .dq = a.dq.data,
                                                              .dk = a.dk.data,
                                                              .dv = a.dv.data});
  } else {
    take_delta(call, a);
    attend_backward(call, a);
  }
  unrotate(call, a);
}

}  // namespace ananke::cuda
