#pragma once

#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>

#include "plugins/backend_cuda/operators/cudnn_attention.h"
#include "plugins/backend_cuda/operators/device_facts.h"
#include "plugins/backend_cuda/operators/faults.h"
#include "runtime/operators/attention.h"

namespace ananke::cuda {

struct AttentionCall;

// Which kernels attend.
enum class AttentionChoice {
  own,        // those of this backend: the same bits in every run
  cudnn,      // cuDNN's; refused where they cannot be had
  automatic,  // cuDNN's where they can be had and activations are bf16, else the own
};

// Norms and rotation, and between them either cuDNN's kernels (cudnn_attention.h) or these:
// tiles of keys and values in shared memory, f32 arithmetic, online softmax; the backward pass computes scores again,
// once for dk and dv and once for dq, so that no two blocks add to one place: the same bits in every run. Activations
// f32 or bf16; norms and their gradients f32. Heads of at most 256 elements.
class CudaAttention final : public Attention {
 public:
  // `widest`: the largest type of activations that `workspace` makes room for; cuDNN is used where it is bf16. On the
  // current device; Error(config) where cuDNN is asked for and cannot be had.
  // `deterministic`: the same bits in every run, by whichever kernels.
  CudaAttention(const DeviceFacts& facts, const Faults& faults, DType widest, AttentionChoice choice,
                bool deterministic);
  std::string kernels() const;  // whose attend: "cuDNN 9.19.0"
  std::size_t saved(const Sizes& s) const override;
  // Builds cuDNN's plans for these sizes where there are none: sizes are asked for before the first step. Error(config)
  // where a deterministic pass of cuDNN's would need too much memory.
  std::size_t workspace(const Sizes& s) const override;
  void forward(Stream& stream, const Forward& a) override;
  void backward(Stream& stream, const Backward& a) override;

 private:
  void open_cudnn(const DeviceFacts& facts);
  bool has_room_for_cudnn(const Sizes& n) const;
  void refuse_many_pairs(const Sizes& n) const;
  void plan_cudnn(const Sizes& n) const;
  void check_call(const char* op, const Sizes& n, DType elements, bool cudnn, const Region& saved_memory,
                  const Region& scratch) const;
  RaggedCall ragged_call(const AttentionCall& call, const Inputs& in, Carve& rest) const;
  bool by_cudnn(const Sizes& n, DType elements, std::initializer_list<const void*> data) const;

  const Faults& faults_;
  const DType widest_;
  const AttentionChoice choice_;
  const bool deterministic_;
  std::unique_ptr<CudnnAttention> cudnn_;     // null: the own kernels
  mutable std::atomic<bool> refused_{false};  // cuDNN had no plan
};

}  // namespace ananke::cuda
